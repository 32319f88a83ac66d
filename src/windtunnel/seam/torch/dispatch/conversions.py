"""Floating point numbers that an integer type does not hold: C++ says nothing of them, and CUDA saturates.

A GPU's conversion gives the type's nearest number; NaN gives 0 from the narrower types to 32 bits, else the number
whose highest bit alone is set (PTX ISA, "Instructions: cvt"). x86 gives the latter for all. Bytes are made of 64 bits
on both (c10/util/TypeCast.h, `static_cast_with_inter_type`). For 8 and 16 bits with a sign, and for 16 without, the
instruction is the compiler's choice, and the CPU's numbers stay.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from windtunnel.seam.torch.tags import is_physically_meta

Tensor = torch.Tensor
CONVERSION = torch.ops.prims.convert_element_type.default
"""What Inductor's graphs convert with."""


class Bounds(NamedTuple):
    """Where a conversion saturates: `end` is the first number above, `least` and `most` are its results.

    `nan` is that of a NaN, `nan_of_double` that of one of 64 bits.
    """

    start: float
    end: float
    least: int
    most: int
    nan: int
    nan_of_double: int


def _signed(bits: int, nan: int) -> Bounds:
    half = 1 << (bits - 1)
    return Bounds(-float(half), float(half), -half, half - 1, nan, -half)


def _unsigned(bits: int, nan: int) -> Bounds:
    return Bounds(0.0, 2.0**bits, 0, (1 << bits) - 1, nan, 1 << (bits - 1))


BOUNDS = {
    torch.int32: _signed(32, 0),
    torch.int64: _signed(64, -(1 << 63)),
    torch.uint8: Bounds(-(2.0**63), 2.0**63, 0, 255, 0, 0),
    torch.uint32: _unsigned(32, 0),
    torch.uint64: _unsigned(64, 1 << 63),
}


def saturate(source: Tensor, made: Tensor) -> None:
    """Put CUDA's numbers into `made`, which holds those of a conversion of `source` on the CPU."""
    bounds = BOUNDS.get(made.dtype)
    if bounds is None or not source.dtype.is_floating_point or not _plain(source, made):
        return
    wide = (source if source.dtype in (torch.float32, torch.float64) else source.float()).expand_as(made)
    if bool(((wide >= bounds.start) & (wide < bounds.end)).all()):
        return
    nan = bounds.nan_of_double if source.dtype is torch.float64 else bounds.nan
    signed = made.view(torch.int64) if made.dtype is torch.uint64 else made  # which has no masked_fill
    for mask, number in (
        (wide < bounds.start, bounds.least),
        (wide >= bounds.end, bounds.most),
        (wide.isnan(), nan),
    ):
        signed.copy_(torch.where(mask, _in_range(number, signed.dtype), signed))


def convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`CONVERSION`, in a graph that computes a compiled program."""
    made: Tensor = CONVERSION(tensor, dtype)
    saturate(tensor, made)
    return made


def _in_range(number: int, dtype: torch.dtype) -> Tensor:
    """A number as a tensor; one of 64 bits without a sign as the same bits with one."""
    if dtype is torch.int64 and number >= 1 << 63:
        number -= 1 << 64
    return torch.tensor(number, dtype=dtype, device="cpu")


def _plain(*tensors: Tensor) -> bool:
    return not any(t.layout is not torch.strided or t.is_nested or is_physically_meta(t) for t in tensors)
