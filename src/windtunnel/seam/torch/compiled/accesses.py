"""What a generated kernel moves to and from memory, by the accesses of the nodes that it fuses.

An access is a load or a store in a loop nest, `index = offset + sum(stride * variable)`. Memory moves in sectors of
32 bytes, so a slice costs what its runs of neighbours touch, a value that a dimension repeats is read once, and
overlapping windows share what they have in common. Inductor's own count (`get_read_write_buffer_accesses` of
torch/_inductor/scheduler.py) takes a whole buffer wherever a loop goes over as many elements as the buffer has.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch

SECTOR = 32
"""Bytes that memory moves at least (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
INDICES = (torch.int32, torch.int64)
"""Of numbers that can be places in a buffer."""
_OUTSIDE = -1
"""The loop of what a kernel does outside of its reduction loops."""


class Access(NamedTuple):
    """A load or a store of a node: of what buffer, how large that is, and where in it.

    `strides` (in elements, one for each of `sizes`) are None where the place is no linear function of the loops; then
    `places` is at how many of them it can be. `loop` is the reduction loop of the kernel that it is in.
    """

    buffer: str
    writes: bool
    item_bytes: int
    elements: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int
    loop: int
    places: int = 0


class Traffic(NamedTuple):
    """Bytes that a kernel reads, writes, and reads again in a further reduction loop."""

    read_bytes: int
    written_bytes: int
    again_bytes: int


class Expression(Protocol):
    """An expression of SymPy's, as far as it is asked."""

    is_Integer: bool  # noqa: N815
    free_symbols: set[object]

    def subs(self, values: Mapping[object, int]) -> Expression: ...

    def expand(self) -> Expression: ...

    def __sub__(self, other: object) -> Expression: ...

    def __int__(self) -> int: ...


class _Symbol(Protocol):
    def __rmul__(self, factor: int) -> int: ...


@runtime_checkable
class Dependency(Protocol):
    """A load or a store as Inductor's scheduler keeps it (`MemoryDep`)."""

    name: str
    index: Expression
    var_names: tuple[_Symbol, ...]
    size: tuple[Expression, ...]


class _ReadWrites(Protocol):
    reads: Iterable[object]
    writes: Iterable[object]


@runtime_checkable
class _Node(Protocol):
    read_writes: _ReadWrites


class _Sizes(Protocol):
    def optimization_hint(self, expr: Expression, fallback: int) -> int: ...

    def stride_hints(self, index: Expression, var_names: Sequence[_Symbol]) -> list[int]: ...


class GraphLowering(Protocol):
    """The graph that Inductor compiles (`V.graph`), as far as it is asked."""

    sizevars: _Sizes

    def get_dtype(self, name: str) -> torch.dtype:
        """The type of a buffer."""

    def get_numel(self, name: str) -> Expression:
        """The elements of a buffer."""


def of_nodes(node_schedule: Iterable[object], graph: GraphLowering) -> list[Access]:
    """The accesses of a kernel's nodes; between these stand the marks that end and begin a reduction loop."""
    found = []
    loop = loops = 0
    for node in node_schedule:
        if isinstance(node, _Node):
            reads = list(filter(_is_access, node.read_writes.reads))
            looked_up = _looked_up(reads, graph)
            for writes, some in ((False, reads), (True, node.read_writes.writes)):
                found += [_access(one, writes, loop, graph, looked_up) for one in some if _is_access(one)]
        elif loop == _OUTSIDE:
            loop = loops = loops + 1
        else:
            loop = _OUTSIDE
    return found


def _is_access(one: object) -> TypeGuard[Dependency]:
    """Whether a dependency says where it is; others (`StarDep`) raise where they are asked for it."""
    return hasattr(one, "var_names") and isinstance(one, Dependency)


def _looked_up(reads: Iterable[Dependency], graph: GraphLowering) -> int:
    """How many numbers the loops of a node can look up as places: those of the integers that it reads, or any."""
    counts = [_places(of, graph) for of in reads if graph.get_dtype(of.name) in INDICES]
    return prod(counts) if counts else sys.maxsize


def _places(of: Dependency, graph: GraphLowering) -> int:
    """At how many places an access is by the loops that its index names."""
    named = [size for name, size in zip(of.var_names, of.size, strict=True) if name in of.index.free_symbols]
    return prod(graph.sizevars.optimization_hint(size, fallback=0) for size in named)


def _access(of: Dependency, writes: bool, loop: int, graph: GraphLowering, looked_up: int) -> Access:
    sizes = tuple(graph.sizevars.optimization_hint(size, fallback=0) for size in of.size)
    elements = graph.sizevars.optimization_hint(graph.get_numel(of.name), fallback=0)
    strides: tuple[int, ...] | None = None
    offset = of.index.subs(dict.fromkeys(of.var_names, 0))
    if offset.is_Integer and of.index.free_symbols <= set(of.var_names):
        strides = tuple(map(int, graph.sizevars.stride_hints(of.index, of.var_names)))
        line = sum(stride * name for stride, name in zip(strides, of.var_names, strict=True))
        if (of.index - line - offset).expand().free_symbols:
            strides = None
    item = graph.get_dtype(of.name).itemsize
    if strides is None:
        places = min(prod(sizes), looked_up * _places(of, graph))
        return Access(of.name, writes, item, elements, sizes, None, 0, loop, places)
    return Access(of.name, writes, item, elements, sizes, strides, int(offset), loop)


def traffic(accesses: Iterable[Access], inside: Container[str]) -> Traffic:
    """The bytes of a kernel that keeps the buffers `inside` to itself."""
    reads: dict[str, list[Access]] = defaultdict(list)
    writes: dict[str, list[Access]] = defaultdict(list)
    for one in accesses:
        (writes if one.writes else reads)[one.buffer].append(one)
    read = again = 0
    for buffer, some in reads.items():
        if buffer in writes:
            continue
        size = moved(some)
        read += size
        again += size * max(0, len({one.loop for one in some} - {_OUTSIDE}) - 1)
    written = sum(moved(some) for buffer, some in writes.items() if buffer not in inside)
    return Traffic(read, written, again)


def rows(numels: Mapping[str, Expression], graph: GraphLowering) -> int:
    """How many reductions a kernel makes: its grid's dimensions, without those that it reduces ("r0_", "r1_")."""
    hint = graph.sizevars.optimization_hint
    return prod(hint(size, fallback=0) for name, size in numels.items() if not name.startswith("r"))


def moved(accesses: Sequence[Access]) -> int:
    """Bytes of one buffer that these accesses touch, each once."""
    first = accesses[0]
    whole = first.elements * first.item_bytes
    alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    total = 0
    for one in accesses:
        if one.strides is None:
            total += one.places * one.item_bytes
            continue
        dims = tuple(sorted((abs(stride), size) for stride, size in zip(one.strides, one.sizes, strict=True) if stride))
        alike[tuple((stride, size) for stride, size in dims if size > 1)].append(one.offset)
    total += sum(_touched(dims, sorted(set(offsets)), first.item_bytes) for dims, offsets in alike.items())
    return min(total, whole)


def _touched(dims: Sequence[tuple[int, int]], offsets: Sequence[int], item: int) -> int:
    """Bytes that loops of these (stride, size), smallest stride first, touch from each of the offsets.

    Runs of neighbours, which rows of their own repeat `rest` times, take whole sectors where they are apart.
    """
    run, rest = 1, 1
    for stride, size in dims:
        if rest == 1 and (stride <= run or (run == 1 and stride * item < SECTOR)):
            run += stride * (size - 1)
        else:
            rest *= size
    if rest == 1 and len(offsets) == 1:
        return run * item
    length, end = 0, -1
    for offset in offsets:  # windows that overlap or share a sector have that in common
        begin = max(offset * item // SECTOR, end)
        end = max(end, ceil((offset + run) * item / SECTOR))
        length += max(0, end - begin)
    return rest * SECTOR * length
