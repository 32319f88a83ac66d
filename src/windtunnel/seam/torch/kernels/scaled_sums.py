"""Sums with `alpha` in half precision: CUDA's kernels scale and add in float32, and round once.

The CPU's kernels round `alpha` to half precision first, and refuse one that is larger than its largest number. Source:
aten/src/ATen/native/ufunc/add.h and ForeachBinaryOpList.cu, whose `opmath_t` is float32 for both types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from windtunnel.seam.torch.plans.halves import HALVES, wide

aten = torch.ops.aten
Tensor = torch.Tensor


def scaled(kernel: Callable[..., Tensor], *, in_place: bool) -> Callable[..., Tensor]:
    """A sum or difference of two tensors, with CUDA's values where both are of one half precision type."""

    def run(self: Tensor, other: object, *, alpha: complex = 1) -> Tensor:
        if alpha == 1 or not _halves(self, other):
            return kernel(self, other, alpha=alpha)
        made = kernel(wide(self), wide(other), alpha=alpha)
        return self.copy_(made) if in_place else made.to(self.dtype)

    return run


def _halves(self: Tensor, other: object) -> bool:
    return (
        self.dtype in HALVES
        and isinstance(other, Tensor)
        and other.dtype is self.dtype
        and self.layout is torch.strided is other.layout
        and not self.is_meta
    )


def each(kernel: Callable[..., Tensor], *, in_place: bool) -> Callable[..., object]:
    """The same over lists, by the operator for two tensors."""
    one = scaled(kernel, in_place=in_place)

    def run(self: Sequence[Tensor], other: Sequence[Tensor], *, alpha: complex = 1) -> list[Tensor] | None:
        made = [one(left, right, alpha=alpha) for left, right in zip(self, other, strict=True)]
        return None if in_place else made

    return run


LAYOUTS = {
    "aten::sub.Tensor": scaled(aten.sub.Tensor._op, in_place=False),
    "aten::sub_.Tensor": scaled(aten.sub_.Tensor._op, in_place=True),
    "aten::rsub.Tensor": scaled(aten.rsub.Tensor._op, in_place=False),
    "aten::_foreach_add.List": each(aten.add.Tensor._op, in_place=False),
    "aten::_foreach_add_.List": each(aten.add_.Tensor._op, in_place=True),
    "aten::_foreach_sub.List": each(aten.sub.Tensor._op, in_place=False),
    "aten::_foreach_sub_.List": each(aten.sub_.Tensor._op, in_place=True),
}
"""By name and overload; those of `add` stand in `sparse_sums`, which sums up two layouts."""
