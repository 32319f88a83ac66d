"""Host tensors for weights that nobody knows: their memory is taken when somebody writes it, a page at a time."""

from __future__ import annotations

import math
import mmap
import sys

import torch

from windtunnel.seam.torch.tags import storage_of

Tensor = torch.Tensor
LARGE = 64 << 20
"""Bytes of made-up numbers that are written at most: predictions, but not a model's weights."""
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Lets more be mapped than the machine has (mmap(2)); Python names it from 3.13 on."""


def is_large(tensor: Tensor) -> bool:
    """Whether a tensor without values is too large to be written on the host."""
    return tensor.is_floating_point() and tensor.numel() * tensor.element_size() > LARGE


def zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A host tensor of zeros that takes no memory until it is written."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def mark(tensor: Tensor) -> Tensor:
    """Remember of a host tensor that its values are made up."""
    storage_of(tensor)._wt_made_up = True
    return tensor


def is_made_up(tensor: Tensor) -> bool:
    """Whether the values of a host tensor are made up, so that no file shall have them."""
    return tensor.layout is torch.strided and getattr(storage_of(tensor), "_wt_made_up", False)
