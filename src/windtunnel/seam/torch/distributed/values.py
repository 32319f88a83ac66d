"""What NCCL takes and refuses, said before gloo carries the values: element types, sizes, reductions.

The sentences are ProcessGroupNCCL's own (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, NCCLUtils.hpp). What gloo
has not in every version of PyTorch, or only for lists of equal tensors, is put together from what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, Result

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.ranks import Carrier

    Reduction = dist.ReduceOp | dist.ReduceOp.RedOpType

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
CONVERTED = FLOAT8 | {torch.complex32, torch.complex64, torch.complex128}
"""Those that gloo carries as others."""

NAMES = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
"""Names that C++ has for types that NCCL does not move."""

GATHERED, SCATTERED, EXCHANGED = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::alltoall_base_"
LISTED = {"c10d::gather_": ("gather", "output"), "c10d::scatter_": ("scatter", "input")}
"""Collectives whose root has a tensor for each rank, and what it does with them."""
ROOTED = {"c10d::broadcast_": "Broadcast", "c10d::reduce_": "Reduce"}
"""Collectives whose root NCCL itself checks (src/misc/argcheck.cc), by its names."""
NO_RANK = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, invalid argument (run with "
    "NCCL_DEBUG=WARN for details), NCCL version {version}\nncclInvalidArgument: Invalid value for an argument.\n"
    "Last error:\n{name} : invalid root {root} (root should be in the 0..{ranks} range)"
)
REDUCING = frozenset(
    {
        "c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_", "c10d::reduce_scatter_", SCATTERED,
        "c10d::reduce_scatter_tensor_coalesced_", "_c10d_functional::all_reduce", "_c10d_functional::all_reduce_",
        "_c10d_functional::all_reduce_coalesced", "_c10d_functional::all_reduce_coalesced_",
        "_c10d_functional::reduce_scatter_tensor", "_c10d_functional::reduce_scatter_tensor_out",
        "_c10d_functional::reduce_scatter_tensor_coalesced",
    }
)  # fmt: skip
"""Collectives that reduce, of c10d and of the functional ones."""


BITWISE = ("BAND", "BOR", "BXOR")


class Reduces(NamedTuple):
    """How a collective reduces: `operation` is what gloo carries out, None where nothing is reduced.

    `mean`: the sum asked for is to be divided by the number of ranks. `factor`: what is summed is to be multiplied
    first.
    """

    operation: Reduction | None = None
    mean: bool = False
    factor: float | Tensor | None = None

    @property
    def name(self) -> str:
        """The name of the reduction that the program asked for, "" for none."""
        if self.mean:
            return "AVG"
        if self.factor is not None:
            return "PREMUL_SUM"
        kind = getattr(self.operation, "op", self.operation)
        return str(getattr(kind, "name", ""))


def check(
    name: str,
    reads: list[Tensor],
    writes: list[Tensor],
    ranks: int,
    reduction: str,
    named: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Raise what NCCL's group raises for the tensors of the operator `name`; `reduction` is named as in `Reduces`.

    `named` are its arguments, of which the splits of an all-to-all are asked for.

    Raises:
        TypeError: an element type that NCCL has not, or two that differ; an average of truth values.
        ValueError: sizes that do not fit the number of ranks; a bitwise reduction; a root's list that does not fit.
        DistBackendError: a root that is no rank.
        RuntimeError: a sum of eight-bit floats; splits that do not add up.
    """
    if reduction in BITWISE:
        raise ValueError(f"Cannot use ReduceOp.{reduction} with NCCL")
    _check_root(name, reads, writes, ranks, named.get("root_rank"))
    if name in (GATHERED, SCATTERED) and reads and writes:
        _check_flat(name, reads[0], writes[0], ranks)
    splits = [named.get("input_split_sizes"), named.get("output_split_sizes")] if name == EXCHANGED else []
    for tensor, rows in zip((reads[0], writes[0]), splits, strict=True) if any(splits) else ():
        _check_splits(tensor, rows if isinstance(rows, (list, tuple)) else (), ranks)
    for tensor in (*reads, *writes):
        if tensor.dtype not in TYPES:
            shown = NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.").capitalize())
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {shown}")
        if tensor.dtype in FLOAT8 and name in REDUCING:
            raise RuntimeError("Float8 dtypes are not currenlty supported for NCCL reductions")
        if tensor.dtype == torch.bool and reduction == "AVG":
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")


def _check_root(name: str, reads: list[Tensor], writes: list[Tensor], ranks: int, root: object) -> None:
    """The number of the root, and of a gather and a scatter its list, which has a tensor of equal shape a rank."""
    absent = isinstance(root, int) and not 0 <= root < ranks
    if absent and name in ROOTED:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        raise dist.DistBackendError(NO_RANK.format(version=version, name=ROOTED[name], root=root, ranks=ranks))
    if name not in LISTED:
        return
    collective, side = LISTED[name]
    wrong, listed, own = (
        f"ProcessGroupNCCL::{collective}: ",
        *((writes, reads) if side == "output" else (reads, writes)),
    )
    if absent:
        raise ValueError(f"{wrong}invalid root rank: {root}")
    if listed and len(listed) != ranks:
        raise ValueError(
            f"{wrong}Incorrect {side} list size {len(listed)}. {side.capitalize()} list size should be {ranks}, "
            "same as size of the process group."
        )
    for index, tensor in enumerate(listed):
        if tensor.shape != own[0].shape:
            wanted, got = (f"({', '.join(map(str, one.shape))})" for one in (own[0], tensor))
            raise ValueError(f"{wrong}invalid tensor size at index {index} (expected {wanted}, got {got})")


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


def _check_splits(tensor: Tensor, splits: Sequence[int], ranks: int) -> None:
    """As c10d's checkSplitSizes (Utils.hpp), which NCCL's group asks where one side at least has splits."""
    if not splits and tensor.shape[0] % ranks:
        raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    if splits and len(splits) != ranks:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if splits and sum(splits) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def each(values: Result, change: Callable[[Tensor], Tensor]) -> Result:
    """`values`, nested lists of tensors, with every tensor changed."""
    if isinstance(values, Tensor):
        return change(values)
    if not isinstance(values, (list, tuple)):
        return values
    made = []
    for one in values:
        if isinstance(one, Tensor):
            one = change(one)
        elif isinstance(one, (list, tuple)):
            one = each(one, change)
        made.append(one)
    return type(values)(made)


def carried(tensor: Tensor) -> Tensor:
    """The tensor as gloo can carry it: eight-bit floats as bytes, complex numbers as pairs, which NCCL does as well."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor


def delivered(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor of type `dtype` that gloo carried."""
    if dtype.is_complex:
        return torch.view_as_complex(tensor)
    return tensor.view(dtype) if dtype in FLOAT8 else tensor


def truth(tensor: Tensor) -> Tensor:
    """A sum of truth values is true or false: NCCL takes the largest, gloo adds bytes."""
    return tensor.view(torch.uint8).clamp_(max=1) if tensor.dtype == torch.bool else tensor


def divided(tensor: Tensor, ranks: int) -> None:
    """Make an average of a sum, in place: integers lose their fraction, as NCCL's do."""
    tensor.div_(ranks, rounding_mode=None if tensor.is_floating_point() else "trunc")


def factor_of(options: object) -> float | Tensor | None:
    """The factor of the reduction `PREMUL_SUM`, a number or a tensor; None of any other reduction."""
    operation = getattr(options, "reduceOp", None)
    return operation.__getstate__()[1] if operation == dist.ReduceOp.PREMUL_SUM else None


def reducing(operation: Reduction) -> dist.AllreduceOptions:
    """The options of an all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = operation  # type: ignore[assignment]  # its setter takes the bare kind of a reduction as well
    return options


def multiplied(arguments: Arguments, reads: int, writes: int, factor: float | Tensor) -> Arguments:
    """The arguments of a collective with what it reads multiplied: in place where it writes there as well."""
    given = arguments[reads]
    if reads == writes:
        each(given, lambda tensor: tensor.mul_(factor))
        return arguments
    return (*arguments[:reads], each(given, lambda tensor: tensor * factor), *arguments[reads + 1 :])


def is_composed(name: str, arguments: Keywords) -> bool:
    """Whether gloo has not the collective `name`, or not for these tensors, in every version of PyTorch."""
    if name == "c10d::allgather_":
        return any(len({tensor.numel() for tensor in tensors}) > 1 for tensors in arguments["output_tensors"])
    return name in COMPOSED


def composed(name: str, carrier: Carrier, rank: int, operation: Reduction | None, arguments: Keywords) -> object:
    """Write a collective's values into its outputs, and return what its operator returns.

    `carrier` is a gloo backend, `operation` the reduction if it has one.
    """
    outputs, inputs = arguments["output_tensors"], arguments["input_tensors"]
    COMPOSED[name](carrier, rank, operation, outputs, inputs)
    return outputs, finished(outputs[0] if name == "c10d::allgather_" else list(outputs))


def finished(written: Sequence[Tensor]) -> torch.ScriptObject:
    """A Work that is done and has written these tensors, as c10d's operators return one."""
    done = torch.futures.Future[Sequence[Tensor]]()
    done.set_result(written)
    work: dist.Work = torch._C._distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]
    return work.boxed()


def _reduce_scatter(
    carrier: Carrier, rank: int, operation: Reduction | None, outputs: list[Tensor], inputs: list[list[Tensor]]
) -> None:
    """An all-reduce of all parts, of which each rank keeps its own: what gloo itself does for one tensor."""
    options = reducing(dist.ReduceOp.SUM if operation is None else operation)
    for output, parts in zip(outputs, inputs, strict=True):
        whole = _flat(parts)
        carrier.allreduce([whole], options).wait()
        output.detach().copy_(_parts(whole, parts)[rank].view(output.shape))


def _all_to_all(
    carrier: Carrier, rank: int, operation: Reduction | None, outputs: list[Tensor], inputs: list[Tensor]
) -> None:
    """One exchange of flat tensors, in which each rank's part has its own size."""
    sent, received = _flat(inputs), _flat(outputs)
    into, out_of = ([tensor.numel() for tensor in tensors] for tensors in (outputs, inputs))
    carrier.alltoall_base(received, sent, into, out_of, dist.AllToAllOptions()).wait()
    for output, part in zip(outputs, _parts(received, outputs), strict=True):
        output.detach().copy_(part.view(output.shape))


def _all_gather(
    carrier: Carrier, rank: int, operation: Reduction | None, outputs: list[list[Tensor]], inputs: list[Tensor]
) -> None:
    """A broadcast from each rank, as NCCL's where sizes differ."""
    for tensors, mine in zip(outputs, inputs, strict=True):
        tensors[rank].detach().copy_(mine.detach())
        for root, tensor in enumerate(tensors):
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = root, 0
            carrier.broadcast([tensor.detach()], options).wait()


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _parts(whole: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(whole.split([tensor.numel() for tensor in tensors]))


COMPOSED: dict[str, Callable[..., None]] = {
    "c10d::reduce_scatter_": _reduce_scatter, "c10d::alltoall_": _all_to_all, "c10d::allgather_": _all_gather,
}  # fmt: skip
"""Collectives over lists: gloo of PyTorch 2.6 has not the first two (ProcessGroupGloo.hpp), nor the third of tensors
whose sizes differ."""
