"""A function whose gradient computes it again, since it keeps little."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor
Layer = Callable[..., tuple[Tensor, ...]]


class _Again(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, layer, *inputs):  # type: ignore[no-untyped-def]
        out, *kept = layer(*inputs)
        ctx.layer, ctx.count = layer, len(inputs)
        ctx.save_for_backward(*inputs, *kept)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        inputs = ctx.saved_tensors[: ctx.count]
        wanted = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            given = [
                one if one is None else one.detach().requires_grad_(needed)
                for one, needed in zip(inputs, wanted, strict=True)
            ]
            out, *_ = ctx.layer(*given)
            leaves = [one for one, needed in zip(given, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(out, leaves, grad))  # type: ignore[arg-type]
        return None, *(next(found) if needed else None for needed in wanted)


def computed_again(layer: Layer, *inputs: Tensor | None) -> Tensor:
    """The first result of a function; its inputs and the other results are kept until the backward pass."""
    out: Tensor = _Again.apply(layer, *inputs)
    return out
