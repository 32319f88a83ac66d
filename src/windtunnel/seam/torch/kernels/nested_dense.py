"""Sums and products of a strided nested tensor and a dense one, which CUDA has a kernel for and the CPU has not.

The dense tensor has one row for each part: [B, *, D] with [B, 1, D], or [B, *] with [B, 1]. Source:
`NestedTensor_elementwise_Tensor` in aten/src/ATen/native/nested/NestedTensorBinaryOps.cpp. `sparse_sums` and
`sparse_elements` register the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def part_by_part(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel, which takes a dense tensor beside a nested one, too."""

    def run(self: Tensor, other: object, **options: object) -> Tensor:
        if not self.is_nested or not isinstance(other, Tensor) or other.is_nested or other.dim() != self.dim():
            return kernel(self, other, **options)
        parts, rows = self.unbind(), other.unbind()
        fits = len(parts) == len(rows) and all(
            row.shape == (1, *part.shape[1:]) for part, row in zip(parts, rows, strict=True)
        )
        if not fits or other.dim() > 3:
            return kernel(self, other, **options)
        made = [kernel(part, row, **options) for part, row in zip(parts, rows, strict=True)]
        nested: Tensor = aten._nested_tensor_from_tensor_list.default(made)
        return nested

    return run
