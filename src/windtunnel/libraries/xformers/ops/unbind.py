"""`xformers.ops.unbind`: parts of a tensor whose gradients, where they are views of one, are not copied together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def _stacked(tensors: Sequence[Tensor], dim: int) -> Tensor | None:
    """The tensor that these are the parts of, without a copy; None where they lie elsewhere."""
    first = tensors[0]
    if len(tensors) <= 1 or dim > first.dim():
        return None
    step = int(tensors[1].storage_offset()) - int(first.storage_offset())
    place = first.untyped_storage().data_ptr()
    for i, one in enumerate(tensors):
        alike = one.shape == first.shape and one.stride() == first.stride()
        if not alike or one.storage_offset() != first.storage_offset() + i * step:
            return None
        if one.untyped_storage().data_ptr() != place:
            return None
    shape, strides = list(first.shape), list(first.stride())
    shape.insert(dim, len(tensors))
    strides.insert(dim, step)
    return first.as_strided(shape, strides)


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):  # type: ignore[no-untyped-def]
        ctx.dim = dim
        return x.unbind(dim)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        whole = _stacked(grads, ctx.dim)
        return torch.stack(grads, ctx.dim) if whole is None else whole, None


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dim, *tensors):  # type: ignore[no-untyped-def]
        ctx.dim = dim
        return _stacked(tensors, dim)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return None, *grad.unbind(ctx.dim)


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """`torch.unbind`, whose gradient is no copy where the parts' gradients are views of one tensor."""
    parts: tuple[Tensor, ...] = _Unbind.apply(x, dim)
    return parts


def stack_or_none(tensors: Sequence[Tensor], dim: int) -> Tensor | None:
    """`torch.stack` where that takes no copy, else None."""
    whole: Tensor | None = _Stack.apply(dim, *tensors)
    return whole
