"""The two half precision types, and values of them made float32 and back: for kernels that compute in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch

from windtunnel.seam.torch.plans.arguments import Kernel

HALVES = (torch.float16, torch.bfloat16)
cast: Kernel = torch.ops.aten._to_copy.default._op


@overload
def wide(value: torch.Tensor) -> torch.Tensor: ...


@overload
def wide(value: torch.Tensor | None) -> torch.Tensor | None: ...


@overload
def wide(value: object) -> object: ...


def wide(value: object) -> object:
    """A half precision tensor in float32; anything else as it is."""
    return cast(value, dtype=torch.float32) if isinstance(value, torch.Tensor) and value.dtype in HALVES else value


def narrow(value: object, dtype: torch.dtype) -> object:
    """A float32 tensor, or those of a tuple, in `dtype`; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(narrow(part, dtype) for part in value)
    is_wide = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return cast(value, dtype=dtype) if is_wide else value


FULL: dict[Callable[..., object], Kernel] = {}
"""What such a function, or one for complex numbers, comes to where no tensor is half precise."""


def in_float32(kernel: Callable[..., object]) -> Callable[..., object]:
    """The kernel, with tensors of one half precision type made float32 before, and its results half again after."""

    def run(first: torch.Tensor, *others: object, **kwargs: object) -> object:
        dtype = first.dtype
        if dtype not in HALVES or first.is_meta:
            return kernel(first, *others, **kwargs)
        tensors = [value for value in others if isinstance(value, torch.Tensor)]
        if any(tensor.dtype is not dtype for tensor in tensors):  # PyTorch's own error
            return kernel(first, *others, **kwargs)
        return narrow(kernel(wide(first), *map(wide, others), **kwargs), dtype)

    FULL[run] = kernel
    return run
