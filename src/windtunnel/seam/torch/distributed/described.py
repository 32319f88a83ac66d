"""What a rank calls of the others, in PyTorch's words, and the numbers by which ranks compare it without the words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch

from windtunnel.ranks.calls import Operation

Tensor = torch.Tensor

NAMES = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce_coalesced", "broadcast_": "broadcast",
    "reduce_": "reduce", "allgather_": "all_gather", "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced", "gather_": "gather", "scatter_": "scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all_single", "barrier": "barrier", "send": "send",
    "recv_": "recv", "recv_any_source_": "recv", "all_reduce_": "all_reduce",
    "all_reduce_coalesced_": "all_reduce_coalesced", "all_gather_into_tensor_out": "all_gather_into_tensor",
    "reduce_scatter_tensor_out": "reduce_scatter_tensor",
}  # fmt: skip
"""Names of operators that are not those of the functions of `torch.distributed` that call them."""

BY_PAIR = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "all_to_all_single"})
"""Collectives of which each pair of ranks has a size of its own."""

MASK = (1 << 62) - 1
"""The bits that ranks compare of a number."""
ODD = 0x9E3779B97F4A7C15


FORM = attrgetter("dtype", "shape")
EVEN: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
Place = tuple[int, int, tuple[int, ...]]
"""A rank's number in its group, the group's size, and the numbers of those of its members that are played."""


class Described(NamedTuple):
    """An operation with what ranks compare: `mark` must be the same on all, and the sums of `sent` and `received` over
    all ranks must be, each of which counts a size once for the pair of ranks that it belongs to."""

    operation: Operation
    mark: int
    sent: int
    received: int


class Descriptions:
    """Describes calls; those that were described before cost a look-up."""

    def __init__(self) -> None:
        self._known: dict[object, Described] = {}

    def collective(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        place: Place,
        reduction: str = "",
        named: Mapping[str, object] | None = None,
    ) -> Described:
        """A collective by its operator's name, in place where it writes what it reads; by a rank at its `place`."""
        writes = () if writes is reads else writes
        root = -1 if named is None else named.get("root_rank", -1)
        splits = _splits(named) if named is not None and "output_split_sizes" in named else EVEN
        key = name, reduction, root, splits, place, *map(FORM, reads), None, *map(FORM, writes)
        found = self._known.get(key)
        if found is None:
            assert isinstance(root, int)
            found = self._known[key] = _described(name, reads, writes, place, (reduction, root, splits))
        return found


def message(name: str, tensors: Sequence[Tensor]) -> Operation:
    """A send or a receive."""
    return Operation(_called(name), *_tensors(tensors), tuple(tensor.numel() for tensor in tensors))


def _called(name: str) -> str:
    short = name.partition("::")[2] or name
    return NAMES.get(short, short)


def _tensors(tensors: Sequence[Tensor]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    return (
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
    )


def _splits(named: Mapping[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows go to each rank and come from each; empty where they are even."""
    sent, received = named.get("input_split_sizes"), named.get("output_split_sizes")
    return (
        tuple(sent) if isinstance(sent, (list, tuple)) else (),
        tuple(received) if isinstance(received, (list, tuple)) else (),
    )


def _described(
    name: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    place: Place,
    more: tuple[str, int, tuple[tuple[int, ...], tuple[int, ...]]],
) -> Described:
    called, (reduction, root, splits) = _called(name), more
    shown = reads if reads else writes
    if called == "barrier":
        return _marked(Operation(called), place)
    sent: Sequence[int] = ()
    received: Sequence[int] = ()
    elements: Sequence[int] = ()
    if called in BY_PAIR:
        sent, received = _by_pair(called, reads, writes, place, root, splits)
    else:
        elements = [tensor.numel() for tensor in shown]
    shapes, dtypes = _tensors(shown)
    made = Operation(
        called, shapes, dtypes, tuple(elements), reduction, root if root >= 0 else -1, tuple(sent), tuple(received)
    )
    return _marked(made, place)


def _by_pair(
    name: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    place: Place,
    root: int,
    splits: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Sequence[int], Sequence[int]]:
    """How many elements this rank sends to each rank of the group, and expects from each."""
    rank, size, _ = place
    mine, theirs = [tensor.numel() for tensor in reads], [tensor.numel() for tensor in writes]
    nothing = [0] * size
    match name:
        case "all_gather":
            return [sum(mine)] * size, _first(theirs, size)
        case "reduce_scatter":
            return _first(mine, size), [sum(theirs)] * size
        case "gather":
            sent = nothing.copy()
            sent[root] = sum(mine)
            return sent, _first(theirs, size) if rank == root else nothing
        case "scatter":
            received = nothing.copy()
            received[root] = sum(theirs)
            return _first(mine, size) if rank == root else nothing, received
        case "all_to_all":
            return _first(mine, size), _first(theirs, size)
    # A functional one makes what it writes, of rows like those that it reads.
    return _parts(reads, splits[0], size), _parts(writes or reads, splits[1], size)


def _first(numbers: Sequence[int], size: int) -> Sequence[int]:
    """A number for each rank; ranks beyond those given get nothing."""
    return [*numbers[:size], *[0] * (size - len(numbers))]


def _parts(tensors: Sequence[Tensor], rows: Sequence[int], size: int) -> Sequence[int]:
    """The elements of one tensor that belong to each rank."""
    if not tensors:
        return [0] * size
    tensor = tensors[0]
    if not rows:
        return [tensor.numel() // size] * size
    row = math.prod(tensor.shape[1:])
    return [row * one for one in rows]


def _marked(operation: Operation, place: Place) -> Described:
    rank, _, present = place
    common = (operation.name, sorted(set(operation.dtypes)), operation.elements, operation.reduction, operation.root)
    mark = int.from_bytes(hashlib.blake2b(repr(common).encode(), digest_size=8).digest(), "little") & MASK
    sizes = [list(map(sizes.__getitem__, present)) if sizes else [] for sizes in (operation.sent, operation.received)]
    sent, received = ([*zip(present, found, strict=bool(found))] for found in sizes)
    sent_sum = sum(size * _weight(rank, other) for other, size in sent) & MASK
    received_sum = sum(size * _weight(other, rank) for other, size in received) & MASK
    return Described(operation, mark, sent_sum, received_sum)


def _weight(sender: int, receiver: int) -> int:
    """A number for a pair of ranks, by which its size is multiplied so that no other pair's makes up for it."""
    return ((sender * 1_000_003 + receiver + 1) * ODD & MASK) | 1
