"""`causal_conv1d.causal_conv1d_interface`: the convolution of whole texts, and of one token after another."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.nn import functional as F

from windtunnel.described import gradients, kernel
from windtunnel.libraries import refuse, unanswered

LIBRARY = "causal_conv1d 1.5.0"
Tensor = torch.Tensor
ACTIVATIONS = (None, "silu", "swish")


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "causal_conv1d.causal_conv1d_interface", name)


def _flops(x: Tensor, weight: Tensor, *others: object) -> int:
    return 2 * x.numel() * weight.shape[1]


def _backward_flops(grad: Tensor, x: Tensor, weight: Tensor, *others: object) -> int:
    return 3 * _flops(x, weight)


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, activated: bool) -> Tensor:
    """[batch, channels, tokens] in float32."""
    width = weight.shape[1]
    given = F.pad(x.float(), (width - 1, 0)) if before is None else torch.cat((before.float(), x.float()), -1)
    out = F.conv1d(given, weight.float()[:, None], None if bias is None else bias.float(), groups=weight.shape[0])
    return F.silu(out) if activated else out


@kernel(
    "causal_conv1d::fwd",
    like="aten::silu",
    flops=_flops,
    define="(Tensor x, Tensor weight, Tensor? bias, Tensor? before, bool activated) -> Tensor",
)
def _fwd(x, weight, bias, before, activated):  # type: ignore[no-untyped-def]
    return torch.empty_like(x).copy_(_convolved(x, weight, bias, before, activated))


@kernel(
    "causal_conv1d::bwd",
    like="aten::silu_backward",
    flops=_backward_flops,
    define="(Tensor grad, Tensor x, Tensor weight, Tensor? bias, Tensor? before, bool activated) -> Tensor[]",
)
def _bwd(grad, x, weight, bias, before, activated):  # type: ignore[no-untyped-def]
    given = [tensor for tensor in (x, weight, bias, before) if tensor is not None]
    if x.is_meta:
        return [torch.empty_like(tensor) for tensor in given]

    def again(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        x_, weight_, bias_, before_ = (None if one is None else next(rest) for one in (x, weight, bias, before))
        return _convolved(x_, weight_, bias_, before_, activated)  # type: ignore[arg-type]

    return gradients(again, given, grad)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, before, activated):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight, bias, before)
        ctx.activated = activated
        return torch.ops.causal_conv1d.fwd(x, weight, bias, before, activated)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight, bias, before = ctx.saved_tensors
        found = iter(torch.ops.causal_conv1d.bwd(grad, x, weight, bias, before, ctx.activated))
        of = [None if tensor is None else next(found) for tensor in (x, weight, bias, before)]
        return (*of, None)


def _check(x: Tensor, weight: Tensor, activation: str | None) -> None:
    if activation not in ACTIVATIONS:
        raise NotImplementedError("activation must be None, silu, or swish")
    if not x.is_cuda:
        raise RuntimeError("Expected x.is_cuda() to be true, but got false.")
    if x.dim() == 3 and x.stride(1) == 1 and x.stride(2) > 1:  # channels last
        if x.shape[1] % 8:
            raise RuntimeError("causal_conv1d only supports channel dimension divisible by 8 for now")
        if x.stride(0) % 8 or x.stride(2) % 8:
            raise RuntimeError(
                "causal_conv1d with channel last layout requires strides (x.stride(0) and x.stride(2)) to be multiples "
                "of 8"
            )
    if not 2 <= weight.shape[1] <= 4:
        raise RuntimeError("causal_conv1d only supports width between 2 and 4")


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The convolution of [batch, channels, tokens] with [channels, width]."""
    if x.stride(2) != 1 and x.stride(1) != 1:
        x = x.contiguous()
    _check(x, weight, activation)
    if seq_idx is not None:
        unanswered(LIBRARY, "causal_conv1d_fn with seq_idx", "give texts that are not packed")
    out = _Convolution.apply(x, weight, bias, initial_states, activation is not None)
    if not return_final_states:
        return out
    width = weight.shape[1]
    given = x if initial_states is None else torch.cat((initial_states, x), -1)
    states = F.pad(given, (max(0, width - 1 - given.shape[-1]), 0))[..., 1 - width :]
    return out, states if final_states_out is None else final_states_out.copy_(states)


@kernel(
    "causal_conv1d::update",
    like="aten::silu",
    flops=lambda x, state, weight, *others: 2 * x.numel() * weight.shape[1],
    define="(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, bool activated) -> Tensor",
)
def _update(x, state, weight, bias, activated):  # type: ignore[no-untyped-def]
    every = torch.cat((state, x), -1)
    state.copy_(every[..., -state.shape[-1] :])
    kept = every[..., -(weight.shape[1] - 1 + x.shape[-1]) :]
    out = _convolved(kept[..., weight.shape[1] - 1 :], weight, bias, kept[..., : weight.shape[1] - 1], activated)
    return out.to(x.dtype)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The same of the next tokens, [batch, channels] or [batch, channels, tokens]; the state moves on."""
    _check(x, weight, activation)
    for name, value in (("cache_seqlens", cache_seqlens), ("conv_state_indices", conv_state_indices)):
        if value is not None:
            unanswered(LIBRARY, f"causal_conv1d_update with {name}")
    tokens = x[..., None] if x.dim() == 2 else x
    out: Tensor = torch.ops.causal_conv1d.update(tokens, conv_state, weight, bias, activation is not None)
    return out[..., 0] if x.dim() == 2 else out
