"""What NCCL takes and refuses, said before gloo carries the values: element types, sizes, reductions.

The sentences are ProcessGroupNCCL's own (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, NCCLUtils.hpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor

FLOAT8: frozenset[torch.dtype] = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
)
TYPES = FLOAT8 | {
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex32, torch.complex64, torch.complex128,
}  # fmt: skip
"""Element types that NCCL moves; complex numbers as pairs of real ones."""

NAMES = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
"""Names that C++ has for types that NCCL does not move."""

GATHERED, SCATTERED = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"
REDUCING = frozenset(
    {
        "c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_", "c10d::reduce_scatter_", SCATTERED,
        "c10d::reduce_scatter_tensor_coalesced_",
    }
)  # fmt: skip


def check(name: str, reads: list[Tensor], writes: list[Tensor], ranks: int) -> None:
    """Raise what NCCL's group raises for the tensors of the operator `name`.

    Raises:
        TypeError: an element type that NCCL has not, or two that differ.
        ValueError: sizes that do not fit the number of ranks.
        RuntimeError: a sum of eight-bit floats.
    """
    if name in (GATHERED, SCATTERED) and reads and writes:
        _check_flat(name, reads[0], writes[0], ranks)
    for tensor in (*reads, *writes):
        if tensor.dtype not in TYPES:
            shown = NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.").capitalize())
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {shown}")
        if tensor.dtype in FLOAT8 and name in REDUCING:
            raise RuntimeError("Float8 dtypes are not currenlty supported for NCCL reductions")


def _check_flat(name: str, read: Tensor, write: Tensor, ranks: int) -> None:
    if name == GATHERED:
        if read.dtype != write.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if read.numel() * ranks != write.numel():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return
    if read.dtype != write.dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    if read.numel() != write.numel() * ranks:
        raise ValueError("input tensor must be the same size as output size times world size")


def each(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`values`, nested lists of tensors, with every tensor changed."""
    if isinstance(values, (list, tuple)):
        return type(values)(each(value, change) for value in values)
    return change(values) if isinstance(values, Tensor) else values


def carried(tensor: Tensor) -> Tensor:
    """The tensor as gloo can carry it: eight-bit floats as bytes."""
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor


def truth(tensor: Tensor) -> Tensor:
    """A sum of truth values is true or false: NCCL takes the largest, gloo adds bytes."""
    return tensor.view(torch.uint8).clamp_(max=1) if tensor.dtype == torch.bool else tensor


def factor_of(options: Any) -> Any:
    """The factor of the reduction `PREMUL_SUM`, a number or a tensor; None of any other reduction."""
    operation: Any = getattr(options, "reduceOp", None)
    return operation.__getstate__()[1] if operation == dist.ReduceOp.PREMUL_SUM else None


def multiplied(arguments: tuple[Any, ...], reads: int, writes: int, factor: Any) -> tuple[Any, ...]:
    """The arguments of a collective with what it reads multiplied: in place where it writes there as well."""
    given = arguments[reads]
    if reads == writes:
        each(given, lambda tensor: tensor.mul_(factor))
        return arguments
    return (*arguments[:reads], each(given, lambda tensor: tensor * factor), *arguments[reads + 1 :])
