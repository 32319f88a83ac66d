"""`mamba_ssm.ops.triton.ssd_combined`: Mamba 2's scan, by chunks of tokens."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.nn import functional as F

from windtunnel.described import gradients, kernel
from windtunnel.libraries import refuse, unanswered
from windtunnel.libraries.causal_conv1d.causal_conv1d_interface import causal_conv1d_fn

from .._again import computed_again
from .layernorm_gated import rmsnorm_fn

LIBRARY = "mamba_ssm 2.2.4"
Tensor = torch.Tensor
Limits = tuple[float, float]
UNLIMITED = (0.0, float("inf"))


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "mamba_ssm.ops.triton.ssd_combined", name)


def _chunks(tensor: Tensor, size: int) -> Tensor:
    """[batch, chunks, size, ...] of [batch, tokens, ...], with zeros at the end, in float32."""
    rest = -tensor.shape[1] % size
    padded = F.pad(tensor.float(), (0, 0) * (tensor.dim() - 2) + (0, rest)) if rest else tensor.float()
    return padded.unflatten(1, (-1, size))


def _heads(matrix: Tensor, heads: int) -> Tensor:
    """B or C of each head: heads of a group share theirs."""
    return matrix.repeat_interleave(heads // matrix.shape[-2], -2)


def _steps(
    dt: Tensor, A: Tensor, bias: Tensor | None, size: int, softplus: bool, limits: Limits
) -> tuple[Tensor, Tensor]:
    """([batch, chunks, size, heads] of steps, sums of step * A within the chunk)."""
    step = dt.float() if bias is None else dt.float() + bias.float()
    step = (F.softplus(step) if softplus else step).clamp(*limits)
    step = _chunks(step, size)
    return step, (step * A.float()).cumsum(2)


def _states(B: Tensor, x: Tensor, step: Tensor, sums: Tensor) -> Tensor:
    """[batch, chunks, heads, width, states] that each chunk adds."""
    weights = (sums[:, :, -1:] - sums).exp() * step
    return torch.einsum("bclhn,bclh,bclhp->bchpn", _heads(B, x.shape[-2]), weights, x)


def _passed(states: Tensor, sums: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the state before each chunk, the last one)."""
    state = torch.zeros_like(states[:, 0]) if before is None else before.float()
    found = []
    for chunk in range(states.shape[1]):
        found.append(state)
        state = sums[:, chunk, -1].exp()[..., None, None] * state + states[:, chunk]
    return torch.stack(found, 1), state


def _scanned(
    x: Tensor, step: Tensor, sums: Tensor, B: Tensor, C: Tensor, states: Tensor, D: Tensor | None, tokens: int
) -> Tensor:
    """[batch, tokens, heads, width]: what tokens of the chunk give, and the state before it."""
    heads, size = x.shape[-2], x.shape[2]
    inward, outward = _heads(B, heads), _heads(C, heads)
    later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
    decay = (sums[:, :, :, None] - sums[:, :, None]).masked_fill(later[:, :, None], -torch.inf).exp()
    scores = torch.einsum("bclhn,bcshn->bclsh", outward, inward) * decay * step[:, :, None]
    out = torch.einsum("bclsh,bcshp->bclhp", scores, x)
    out = out + torch.einsum("bclhn,bchpn,bclh->bclhp", outward, states, sums.exp())
    if D is not None:
        out = out + x * (D.float() if D.dim() == 2 else D.float()[:, None])
    return out.flatten(1, 2)[:, :tokens]


def by_definition(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, bias: Tensor | None,
    before: Tensor | None, size: int, softplus: bool, limits: Limits,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(result, the same before the gate, the last state), in float32."""
    step, sums = _steps(dt, A, bias, size, softplus, limits)
    wide, inward, outward = (_chunks(one, size) for one in (x, B, C))
    states, last = _passed(_states(inward, wide, step, sums), sums, before)
    out = _scanned(wide, step, sums, inward, outward, states, D, x.shape[1])
    return (out if z is None else out * F.silu(z.float())), out, last


def _products(x: Tensor, B: Tensor, size: int) -> tuple[int, int, int]:
    """Multiplications and additions of states, of scores and of results."""
    batch, tokens, heads, width = x.shape
    groups, states = B.shape[-2:]
    count = batch * tokens
    return (
        2 * count * heads * width * states,
        2 * count * size * groups * states,
        2 * count * size * heads * width + 2 * count * heads * width * states,
    )


@kernel(
    "mamba_ssm::chunk_cumsum",
    like="aten::cumsum",
    define="(Tensor dt, Tensor A, Tensor? dt_bias, int size, bool softplus, float least, float most) "
    "-> (Tensor, Tensor)",
)
def _chunk_cumsum(dt, A, dt_bias, size, softplus, least, most):  # type: ignore[no-untyped-def]
    """(steps, sums) [batch, heads, chunks, size]."""
    step, sums = _steps(dt, A, dt_bias, size, softplus, (least, most))
    return step.permute(0, 3, 1, 2).contiguous(), sums.permute(0, 3, 1, 2).contiguous()


@kernel(
    "mamba_ssm::chunk_state",
    like="aten::bmm",
    flops=lambda B, x, step, *others: _products(x, B, step.shape[-1])[0],
    define="(Tensor B, Tensor x, Tensor step, Tensor sums) -> Tensor",
)
def _chunk_state(B, x, step, sums):  # type: ignore[no-untyped-def]
    size = step.shape[-1]
    step, sums = (one.permute(0, 2, 3, 1) for one in (step, sums))
    return _states(_chunks(B, size), _chunks(x, size), step, sums)


@kernel(
    "mamba_ssm::state_passing",
    like="aten::cumsum",
    define="(Tensor states, Tensor sums, Tensor? before, ScalarType dtype) -> (Tensor, Tensor)",
)
def _state_passing(states, sums, before, dtype):  # type: ignore[no-untyped-def]
    found, last = _passed(states, sums.permute(0, 2, 3, 1), before)
    return found.to(dtype), last


@kernel(
    "mamba_ssm::bmm_chunk",
    like="aten::bmm",
    flops=lambda C, B, size: 2 * C.shape[0] * C.shape[1] * size * C.shape[2] * C.shape[3],
    define="(Tensor C, Tensor B, int size) -> Tensor",
)
def _bmm_chunk(C, B, size):  # type: ignore[no-untyped-def]
    return torch.einsum("bclgn,bcsgn->bcgls", _chunks(C, size), _chunks(B, size)).contiguous()


@kernel(
    "mamba_ssm::chunk_scan",
    like="aten::bmm",
    flops=lambda CB, x, step, sums, C, *others: _products(x, C, step.shape[-1])[2],
    define="(Tensor CB, Tensor x, Tensor step, Tensor sums, Tensor C, Tensor B, Tensor states, Tensor? D, Tensor? z) "
    "-> (Tensor, Tensor)",
)
def _chunk_scan(CB, x, step, sums, C, B, states, D, z):  # type: ignore[no-untyped-def]
    """(result, the same before the gate or nothing); the scores are given, and computed again here."""
    size = step.shape[-1]
    step, sums = (one.permute(0, 2, 3, 1) for one in (step, sums))
    wide, inward, outward = (_chunks(one, size) for one in (x, B, C))
    out = _scanned(wide, step, sums, inward, outward, states.float(), D, x.shape[1])
    kept = out.to(x.dtype).contiguous()
    return (kept, kept.new_empty(0)) if z is None else ((out * F.silu(z.float())).to(x.dtype).contiguous(), kept)


INPUTS = "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? before"


@kernel(
    "mamba_ssm::chunk_scan_bwd",
    like="aten::bmm",
    flops=lambda grad, last, x, dt, A, B, C, D, z, dt_bias, before, size, *others: 3 * sum(_products(x, B, size)),
    define=f"(Tensor grad, Tensor? of_last, {INPUTS}, int size, bool softplus, float least, float most) -> Tensor[]",
)
def _chunk_scan_bwd(grad, of_last, x, dt, A, B, C, D, z, dt_bias, before, size, softplus, least, most):  # type: ignore[no-untyped-def]
    inputs = (x, dt, A, B, C, D, z, dt_bias, before)
    given = [tensor for tensor in inputs if tensor is not None]
    if x.is_meta:
        return [torch.empty_like(tensor) for tensor in given]

    def again(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        found = [None if one is None else next(rest) for one in inputs]
        out, _, last = by_definition(*found, size=size, softplus=softplus, limits=(least, most))  # type: ignore[arg-type, misc]
        return out if of_last is None else torch.cat((out.flatten(), last.flatten()))

    whole = grad if of_last is None else torch.cat((grad.float().flatten(), of_last.float().flatten()))
    return gradients(again, given, whole)


class MambaChunkScanCombinedFn(torch.autograd.Function):
    """The scan, with what the library saves."""

    @staticmethod
    def forward(ctx, x, dt, A, B, C, size, D, z, dt_bias, before, softplus, limits, with_last):  # type: ignore[no-untyped-def]
        ops = torch.ops.mamba_ssm
        step, sums = ops.chunk_cumsum(dt, A, dt_bias, size, softplus, *limits)
        states, last = ops.state_passing(ops.chunk_state(B, x, step, sums), sums, before, C.dtype)
        out, ungated = ops.chunk_scan(ops.bmm_chunk(C, B, size), x, step, sums, C, B, states, D, z)
        ctx.save_for_backward(x, dt, A, B, C, D, z, dt_bias, before, sums, out if z is None else ungated)
        ctx.told = size, softplus, *limits
        return (out, last) if with_last else out

    @staticmethod
    def backward(ctx, grad, of_last=None):  # type: ignore[no-untyped-def]
        *inputs, _, _ = ctx.saved_tensors
        found = iter(torch.ops.mamba_ssm.chunk_scan_bwd(grad.contiguous(), of_last, *inputs, *ctx.told))
        x, dt, A, B, C, D, z, dt_bias, before = (None if tensor is None else next(found) for tensor in inputs)
        return x, dt, A, B, C, None, D, z, dt_bias, before, None, None, None


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Limits = UNLIMITED,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The scan of [batch, tokens, heads, width], with steps [batch, tokens, heads] and B, C of groups of heads."""
    if seq_idx is not None or return_varlen_states:
        unanswered(
            LIBRARY, "mamba_chunk_scan_combined with seq_idx or of packed texts", "give texts that are not packed"
        )
    batch, tokens, heads, _ = x.shape
    assert heads % B.shape[2] == 0
    assert dt.shape == (batch, tokens, heads)
    assert A.shape == (heads,)
    assert C.shape == B.shape
    return MambaChunkScanCombinedFn.apply(
        x, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, dt_softplus, dt_limit, return_final_states
    )


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
    chunk_size: int, initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
    dt_limit: Limits = UNLIMITED, return_final_states: bool = False, activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None, rmsnorm_eps: float = 1e-6, outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None, headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True,
) -> Tensor:  # fmt: skip
    """A layer from its first product on: convolution, scan, norm, last product; computed again for the gradient."""
    if seq_idx is not None or return_final_states:
        unanswered(LIBRARY, "mamba_split_conv1d_scan_combined with seq_idx or return_final_states")
    assert activation in (None, "silu", "swish")
    if D.dim() == 1:
        assert headdim is not None
        heads, width = D.shape[0], headdim
    else:
        heads, width = D.shape
    inner = heads * width
    states = (conv1d_weight.shape[0] - inner) // ngroups // 2
    outside = (zxbcdt.shape[-1] - 2 * inner - 2 * ngroups * states - heads) // 2
    assert outside >= 0
    sizes = [outside, outside, inner, inner + 2 * ngroups * states, heads]

    def layer(
        zxbcdt: Tensor, weight: Tensor, bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
        before: Tensor | None, norm: Tensor | None, last: Tensor | None, last_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        first, second, z, xBC, dt = zxbcdt.split(sizes, -1)
        mixed = causal_conv1d_fn(xBC.transpose(1, 2), weight, bias, activation=activation)
        assert isinstance(mixed, Tensor)
        x, B, C = mixed.transpose(1, 2).split([inner, ngroups * states, ngroups * states], -1)
        gate = None if norm is not None else z.unflatten(-1, (heads, width))
        scanned = mamba_chunk_scan_combined(
            x.unflatten(-1, (heads, width)), dt, A, B.unflatten(-1, (ngroups, states)),
            C.unflatten(-1, (ngroups, states)), chunk_size, D, gate, dt_bias, before, dt_softplus=True,
            dt_limit=dt_limit,
        )  # fmt: skip
        assert isinstance(scanned, Tensor)
        out = scanned.flatten(-2)
        if norm is not None:
            out = rmsnorm_fn(out, norm, None, z, rmsnorm_eps, inner // ngroups, norm_before_gate)
        if outside:
            out = torch.cat((F.silu(first) * second, out), -1)
        return (out if last is None else F.linear(out, last, last_bias)), scanned

    return computed_again(
        layer, zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, initial_states, rmsnorm_weight, outproj_weight,
        outproj_bias,
    )  # fmt: skip
