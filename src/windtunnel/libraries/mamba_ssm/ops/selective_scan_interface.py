"""`mamba_ssm.ops.selective_scan_interface`: the scan along the tokens."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.nn import functional as F

from windtunnel.described import gradients, kernel
from windtunnel.libraries import refuse, unanswered
from windtunnel.libraries.causal_conv1d.causal_conv1d_interface import causal_conv1d_fn

LIBRARY = "mamba_ssm 2.2.4"
Tensor = torch.Tensor
CHUNK = 2048
WIDEST = 256
SCHEMA = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, bool softplus"


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "mamba_ssm.ops.selective_scan_interface", name)


def _over_tokens(matrix: Tensor, channels: int, tokens: int) -> Tensor:
    """[batch or 1, channels, states, tokens] of B or C, the same for all tokens or for a group's channels."""
    if matrix.dim() == 2:
        return matrix.float()[None, :, :, None].expand(1, channels, matrix.shape[1], tokens)
    grouped = matrix.float() if matrix.dim() == 4 else matrix.float()[:, None]
    return grouped.repeat_interleave(channels // grouped.shape[1], 1)


def scanned(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, delta_bias: Tensor | None,
    softplus: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """(result before the gate [batch, channels, tokens] in float32, the states after each token)."""
    given, step = u.float(), delta.float()
    if delta_bias is not None:
        step = step + delta_bias.float()[:, None]
    if softplus:
        step = F.softplus(step)
    channels, tokens = u.shape[1:]
    inward, outward = _over_tokens(B, channels, tokens), _over_tokens(C, channels, tokens)
    decay = (step[:, :, None] * A.float()[None, :, :, None]).exp()
    added = (step * given)[:, :, None] * inward
    state = torch.zeros_like(added[..., 0])
    states, results = [], []
    for token in range(tokens):
        state = decay[..., token] * state + added[..., token]
        states.append(state)
        results.append((state * outward[..., token]).sum(-1))
    out = torch.stack(results, -1)
    return (out if D is None else out + given * D.float()[:, None]), states


def _flops(u: Tensor, delta: Tensor, A: Tensor, *others: object) -> int:
    return 9 * u.numel() * A.shape[1]  # of the library's own count of a scan: nine for each state and token


@kernel("mamba_ssm::scan_fwd", flops=_flops, define=f"({SCHEMA}) -> (Tensor, Tensor, Tensor)")
def _fwd(u, delta, A, B, C, D, z, delta_bias, softplus):  # type: ignore[no-untyped-def]
    """(result before the gate, states after each chunk [batch, channels, chunks, 2 * states], result)."""
    batch, channels, tokens = u.shape
    chunks = -(-tokens // CHUNK)
    kept = torch.zeros(batch, channels, chunks, 2 * A.shape[1], dtype=torch.float32, device=u.device)
    out = torch.empty_like(delta)
    gated = torch.empty_like(z) if z is not None else torch.empty(0, dtype=u.dtype, device=u.device)
    if u.is_meta:
        return out, kept, gated
    made, states = scanned(u, delta, A, B, C, D, delta_bias, softplus)
    for chunk in range(chunks):
        kept[:, :, chunk, 1::2] = states[min(tokens, (chunk + 1) * CHUNK) - 1]
    out.copy_(made)
    if z is not None:
        gated.copy_(made * F.silu(z.float()))
    return out, kept, gated


def _backward_flops(grad: Tensor, out: Tensor | None, kept: Tensor, *inputs: Tensor) -> int:
    return 3 * _flops(*inputs)


@kernel(
    "mamba_ssm::scan_bwd", flops=_backward_flops,
    define=f"(Tensor grad, Tensor? out, Tensor kept, {SCHEMA}) -> Tensor[]",
)  # fmt: skip
def _bwd(grad, out, kept, u, delta, A, B, C, D, z, delta_bias, softplus):  # type: ignore[no-untyped-def]
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    given = [tensor for tensor in inputs if tensor is not None]
    if u.is_meta:
        return [torch.empty_like(tensor) for tensor in given]

    def again(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        u, delta, A, B, C, D, z, delta_bias = (None if one is None else next(rest) for one in inputs)
        made = scanned(u, delta, A, B, C, D, delta_bias, softplus)[0]  # type: ignore[arg-type]
        return made if z is None else made * F.silu(z.float())

    return gradients(again, given, grad)


class SelectiveScanFn(torch.autograd.Function):
    """The scan, with what the library saves."""

    @staticmethod
    def forward(ctx, u, delta, A, B, C, D, z, delta_bias, softplus, with_state):  # type: ignore[no-untyped-def]
        out, kept, gated = torch.ops.mamba_ssm.scan_fwd(u, delta, A, B, C, D, z, delta_bias, softplus)
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, kept, None if z is None else out)
        ctx.softplus = softplus
        result = out if z is None else gated
        if not with_state:
            return result
        state = kept[:, :, -1, 1::2]
        ctx.mark_non_differentiable(state)
        return result, state

    @staticmethod
    def backward(ctx, grad, *others):  # type: ignore[no-untyped-def]
        *inputs, kept, out = ctx.saved_tensors
        found = iter(torch.ops.mamba_ssm.scan_bwd(grad.contiguous(), out, kept, *inputs, ctx.softplus))
        return (*(None if tensor is None else next(found) for tensor in inputs), None, None)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The scan of [batch, channels, tokens] with states [channels, states]; `z` gates the result."""
    if A.is_complex():
        unanswered(LIBRARY, "a selective scan with complex A", "give real matrices")
    if cu_seqlens is not None:
        unanswered(LIBRARY, "selective_scan_fn with cu_seqlens", "give texts that are not packed")
    if not u.is_cuda:
        raise RuntimeError("Expected u.is_cuda() to be true, but got false.")
    if A.shape[1] > WIDEST:
        raise RuntimeError("selective_scan only supports state dimension <= 256")
    return SelectiveScanFn.apply(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


class MambaInnerFn(torch.autograd.Function):
    """A layer from its first product on, which keeps what the library keeps and computes the convolution again."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        xz,
        conv_weight,
        conv_bias,
        x_weight,
        delta_weight,
        out_weight,
        out_bias,
        A,
        D,
        delta_bias,
        softplus,
        norms,
        eps,
    ):
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            x_weight, delta_weight, out_weight = (one.to(dtype) for one in (x_weight, delta_weight, out_weight))
            out_bias = out_bias if out_bias is None else out_bias.to(dtype)
        x, z = xz.chunk(2, 1)
        convolved = _convolved(x, conv_weight, conv_bias)
        small = F.linear(convolved.transpose(1, 2).flatten(0, 1), x_weight)
        delta, B, C = map(_normed, _parts(small, delta_weight, A, *xz.shape[::2]), norms, (eps,) * 3)
        out, kept, gated = torch.ops.mamba_ssm.scan_fwd(convolved, delta, A, B, C, D, z, delta_bias, softplus)
        ctx.save_for_backward(
            xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, A, D, delta_bias, small, B, C, kept, out
        )
        ctx.told = softplus, out_bias is not None, norms, eps
        return F.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (xz, conv_weight, conv_bias, x_weight, delta_weight, out_weight, A, D, delta_bias, small, B, C, kept, out) = (
            ctx.saved_tensors
        )
        softplus, biased, norms, eps = ctx.told
        with torch.enable_grad():
            x, z = (one.detach() for one in xz.chunk(2, 1))
            leaves = [x.requires_grad_(), conv_weight.detach().requires_grad_()]
            leaves += [] if conv_bias is None else [conv_bias.detach().requires_grad_()]
            convolved = _convolved(x, leaves[1], leaves[2] if leaves[2:] else None)
            of_small = [small.detach().requires_grad_(), delta_weight.detach().requires_grad_()]
            delta, *_ = _parts(of_small[0], of_small[1], A, *xz.shape[::2])
        # As the library: B and C are kept with their norms and get them again, and no gradient goes through a norm.
        normed, B, C = map(_normed, (delta.detach(), B, C), norms, (eps,) * 3)
        gated = out * F.silu(z.detach())
        rows = grad.flatten(0, 1)
        of_out = [rows.t() @ gated.transpose(1, 2).flatten(0, 1), rows.sum(0) if biased else None]
        given = (grad @ out_weight).transpose(1, 2).contiguous()
        inputs = (convolved.detach(), normed, A, B, C, D, z.detach(), delta_bias)
        of_x, of_delta, of_A, of_B, of_C, *rest = torch.ops.mamba_ssm.scan_bwd(given, out, kept, *inputs, softplus)
        of_D = rest.pop(0) if D is not None else None
        of_z, of_bias = rest[0], rest[1] if delta_bias is not None else None
        of_dt, of_delta_weight = torch.autograd.grad(delta, of_small, of_delta)
        rank, states = delta_weight.shape[1], A.shape[1]
        of_dt[:, rank : rank + states] = of_B.transpose(1, 2).flatten(0, 1)
        of_dt[:, rank + states :] = of_C.transpose(1, 2).flatten(0, 1)
        of_x_weight = of_dt.t() @ convolved.detach().transpose(1, 2).flatten(0, 1)
        of_x = of_x + (of_dt @ x_weight).view(xz.shape[0], xz.shape[2], -1).transpose(1, 2)
        of_input, *of_conv = torch.autograd.grad(convolved, leaves, of_x)
        of_conv_bias = of_conv[1] if conv_bias is not None else None
        of_conv_weight, of_xz = of_conv[0], torch.cat((of_input, of_z), 1)
        of_weights = of_xz, of_conv_weight, of_conv_bias, of_x_weight, of_delta_weight, *of_out
        return *of_weights, of_A, of_D, of_bias, None, None, None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = causal_conv1d_fn(x, weight[:, 0], bias, activation="silu")
    assert isinstance(out, Tensor)
    return out


def _normed(matrix: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """[batch, columns, tokens] with its columns' RMS norm."""
    if weight is None:
        return matrix
    return F.rms_norm(matrix.transpose(1, 2), weight.shape, weight.to(matrix.dtype), eps).transpose(1, 2).contiguous()


def _parts(small: Tensor, delta_weight: Tensor, A: Tensor, batch: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """(steps [batch, channels, tokens], B and C [batch, states, tokens]) of a product's columns."""
    rank, states = delta_weight.shape[1], A.shape[1]
    delta = (delta_weight @ small[:, :rank].t()).view(-1, batch, tokens).transpose(0, 1)
    inward, outward = small[:, rank:].split(states, 1)
    B, C = (one.reshape(batch, tokens, -1).transpose(1, 2).contiguous() for one in (inward, outward))
    return delta, B, C


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """A layer from its first product [batch, 2 * channels, tokens] on: convolution, scan, last product."""
    if A.is_complex():
        unanswered(LIBRARY, "a selective scan with complex A", "give real matrices")
    if any(one is not None for one in (B, C, B_proj_bias, C_proj_bias)) or checkpoint_lvl != 1:
        unanswered(LIBRARY, "mamba_inner_fn with B, C, their biases, or checkpoint_lvl 0")
    out: Tensor = MambaInnerFn.apply(
        xz if xz.stride(-1) == 1 else xz.contiguous(), conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight,
        out_proj_weight, out_proj_bias, A, D, delta_bias, delta_softplus, (dt_rms_weight, b_rms_weight, c_rms_weight),
        b_c_dt_rms_eps,
    )  # fmt: skip
    return out
