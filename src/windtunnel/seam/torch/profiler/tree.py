"""The profiler's tree of events as the program's own: without what the emulation did, and with tensors on devices.

The emulation runs between an operator and its kernel, so its frames, marks and bookkeeping lie in PyTorch's tree where
a GPU has nothing. What an operator calls inside is what it would call on a GPU too when it is a composite; a kernel's
own steps on the CPU are not.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch._C._profiler import _EventType

from windtunnel.seam.torch.profiler.events import HIDDEN, MEMORY, OWN_FILES, Around
from windtunnel.seam.torch.profiler.times import MARK, Death, SeamMark, Taken

if TYPE_CHECKING:
    from torch._C._profiler import _ProfilerEvent

METADATA = torch._C._profiler._TensorMetadata
PYTHON = (_EventType.PyCall, _EventType.PyCCall)
RULES = "find_torch_dispatch_rule"
"""The function of PyTorch's that C++ calls before a dispatch mode."""
OPAQUE = frozenset({"aten::_convolution"})
"""Composites that call another library on a GPU than on the CPU."""

LIBRARIES = sys.stdlib_module_names - {"threading"}
MACHINERY = ("torch/_", "torch/utils/_", "torch/overrides.py", "torch/cuda/", "torch/storage.py", "<")
"""What the emulation's own functions call for themselves."""

WITHOUT_A_CALL = frozenset({"set_item"})
"""Functions of ours in the place of what Python does by an instruction, of which the profiler hears nothing."""

OUTSIDE, OURS, MARKED, INSIDE = range(4)
"""Where a part of the tree lies: in what the program did, in a function of ours, in a mark but not (yet) in the
operator that it is about, in that operator."""


@functools.cache
def with_kernels() -> frozenset[str]:
    """The operators of which an overload has a kernel of the CPU's; what others call here they call on a GPU too."""
    registered: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
    return frozenset(name.partition(".")[0] for name in registered) | OPAQUE


class StockPlace(NamedTuple):
    """Where an allocation of the stock tree lies: `mark` is the number of the mark round it (-1: none).

    `lasting` says that it is shown only when it outlives that mark, or its storage lives on a device; `inside` is the
    operator that it belongs to, where that ran inside the mark.
    """

    event: _ProfilerEvent
    mark: int
    lasting: bool
    inside: Node | None


class Node(Around):
    """An event of the tree, in modelled time, with the parent and the children that are shown."""

    def __init__(self, stock: _ProfilerEvent, parent: Node | None) -> None:
        self._stock: _ProfilerEvent = stock
        self.parent = parent
        self.children: list[Node] = []
        self.start_time_ns = stock.start_time_ns
        self.end_time_ns = stock.end_time_ns
        self.extra_fields: Fields = stock.extra_fields  # type: ignore[assignment]
        self.from_ours = self.stands_in = False

    @property
    def typed(self) -> tuple[object, object]:
        """The kind of event and its fields."""
        return self.tag, self.extra_fields

    @property
    def duration_time_ns(self) -> int:
        """How long it took, in ns."""
        return self.end_time_ns - self.start_time_ns

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._stock)


class Fields(Around):
    """Fields of an event, or a tensor's metadata, some of them with other values than PyTorch's own."""

    def __init__(self, stock: object, **values: object) -> None:
        self.__dict__.update(values)
        self._stock = stock

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = self.__dict__.get("kind") or type(self._stock)
        return kind


class Tree:
    """The events of one window that are shown, as a tree; `marks` are those of its recording.

    `inner` are the numbers of the operators that are shown although they ran inside a mark.
    """

    def __init__(self, roots: Iterable[_ProfilerEvent], marks: list[SeamMark]) -> None:
        self.marks = marks
        self.roots: list[Node] = []
        self.places: list[StockPlace] = []
        self.inner: set[int] = set()
        self.aliases: dict[int, torch._C._profiler._TensorMetadata] = {}
        self._gather(roots)

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before their children."""
        waiting = self.roots[::-1]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children[::-1]

    # ------------------------------------------------------------------ what is shown

    def _gather(self, roots: Iterable[_ProfilerEvent]) -> None:
        waiting: list[tuple[_ProfilerEvent, Node | None, int, int]]
        waiting = [(event, None, OUTSIDE, -1) for event in list(roots)[::-1]]
        while waiting:
            event, parent, where, mark = waiting.pop()
            node, where, mark = self._place(event, parent, where, mark)
            children = list(event.children)
            for at in range(len(children) - 1, -1, -1):
                if not _asks_for_ours(children, at):
                    waiting.append((children[at], node, where, mark))
        for node in list(self.nodes())[::-1]:
            node.children = [shown for child in node.children for shown in _led_somewhere(child, node)]
        self.roots = [shown for root in self.roots for shown in _led_somewhere(root, None)]

    def _place(self, event: _ProfilerEvent, parent: Node | None, where: int, mark: int) -> tuple[Node | None, int, int]:
        """Under which node the children of an event come, where they lie and in which mark; shows the event."""
        name, tag = name_of(event), event.tag
        if tag == _EventType.Allocation:
            lasting = where == MARKED or (where == INSIDE and self.marks[mark].on_device)
            inner = parent is not None and parent.correlation_id in self.inner
            self.places.append(StockPlace(event, mark, lasting, parent if inner else None))
            self._show(event, parent)
            return parent, where, mark
        if where in (MARKED, INSIDE):
            if tag in PYTHON or name.startswith(MARK):
                return parent, where, mark
            if where == MARKED:
                asked = self.marks[mark].name
                if name != asked or parent is None or name_of(parent) != asked:
                    return parent, MARKED, mark
                self._same(event, parent)
                return parent, self._within(mark, name), mark
            self.inner.add(event.correlation_id)
            return self._show(event, parent), self._within(mark, name), mark
        if name.startswith(MARK):
            return parent, MARKED, int(name[len(MARK) :])
        if name in HIDDEN or (tag in PYTHON and name.startswith(OWN_FILES)):
            begins = where == OUTSIDE and tag in PYTHON and (parent is None or parent.tag in PYTHON)
            begins = begins and name.rpartition(": ")[2] not in WITHOUT_A_CALL
            return self._stand_in(event, parent) if begins else parent, OURS, mark
        if where == OURS and tag == _EventType.PyCall:
            if name.startswith(MACHINERY) or _package(name) in LIBRARIES:
                return parent, OURS, mark
            where = OUTSIDE  # the program's: a thread's function, a hook
        if where == OURS and tag == _EventType.PyCCall and parent is not None and parent.tag not in PYTHON:
            return parent, OURS, mark
        node = self._show(event, parent)
        node.from_ours = where == OURS and tag == _EventType.PyCCall
        return node, where, mark

    def _same(self, event: _ProfilerEvent, node: Node) -> None:
        """See which tensors an operator got again as others: a number is made a tensor anew for each of the two."""
        given = event.extra_fields.inputs  # type: ignore[union-attr]  # which the tag tells
        for inner, outer in zip(given, node.extra_fields.inputs, strict=False):
            if isinstance(inner, METADATA) and isinstance(outer, METADATA) and inner.id not in (None, outer.id):
                self.aliases[inner.id or 0] = outer

    def _stand_in(self, event: _ProfilerEvent, parent: Node | None) -> Node:
        """Show a function of ours as PyTorch's built-in one, in whose place it stands."""
        name = name_of(event).rpartition(": ")[2]
        stock = SimpleNamespace(
            name=f"<built-in method {name} of Tensor object at 0x0000>", tag=_EventType.PyCCall, id=event.id,
            start_time_ns=event.start_time_ns, end_time_ns=event.end_time_ns, start_tid=event.start_tid,
            correlation_id=event.correlation_id, children=[],
            extra_fields=Fields(event.extra_fields, kind=torch._C._profiler._ExtraFields_PyCCall),
        )  # fmt: skip
        node = self._show(stock, parent)  # type: ignore[arg-type]
        node.stands_in = True
        return node

    def _within(self, mark: int, name: str) -> int:
        return INSIDE if not self.marks[mark].on_device or name not in with_kernels() else MARKED

    def _show(self, event: _ProfilerEvent, parent: Node | None) -> Node:
        node = Node(event, parent)
        (self.roots if parent is None else parent.children).append(node)
        return node

    def bury(self, death: Death, thread: int, fields: Allocated) -> None:
        """Show the end of a storage that was there before the window, in the innermost event round it."""
        said = Fields(fields, id=None, allocation_id=None, kind=torch._C._profiler._ExtraFields_Allocation)
        stock = SimpleNamespace(
            name=MEMORY, tag=_EventType.Allocation, start_time_ns=death.real_ns, end_time_ns=death.real_ns, id=0,
            start_tid=thread, correlation_id=0, extra_fields=said, children=[],
        )  # fmt: skip
        parent, siblings = None, self.roots
        while True:
            node = Node(stock, parent)  # type: ignore[arg-type]
            round_it = [one for one in siblings if one.start_time_ns <= death.real_ns <= one.end_time_ns]
            held = [one for one in round_it if one.start_tid == thread and one.tag != _EventType.Allocation]
            if not held:
                break
            parent, siblings = held[-1], held[-1].children
        siblings.insert(bisect_right([one.start_time_ns for one in siblings], death.real_ns), node)

    # ------------------------------------------------------------------ what they say

    def move(self, times: Mapping[int, Mapping[int, int]]) -> None:
        """Give the events their modelled times: for each thread, the profiler's ns to modelled ns."""
        for node in self.nodes():
            moved = times[node.start_tid]
            node.start_time_ns, node.end_time_ns = moved[node.start_time_ns], moved[node.end_time_ns]

    def dress(self, allocations: Mapping[tuple[int, int], Allocated | None], places: Places) -> None:
        """Give allocations and tensors their devices and numbers; `allocations` without a value are not shown."""
        for node in self.nodes():
            node.children = [
                child for child in node.children if _key(child) not in allocations or allocations[_key(child)]
            ]
        self.roots = [node for node in self.roots if _key(node) not in allocations or allocations[_key(node)]]
        for node in self.nodes():
            found = allocations.get(_key(node))
            if found is not None:
                node.extra_fields = Fields(node.extra_fields, **found._asdict())
            elif node.tag == _EventType.TorchOp:
                self._operator(node, places)
            elif node.tag in PYTHON:
                self._call(node, places)
        self._number()

    def _operator(self, node: Node, places: Places) -> None:
        dressed = functools.partial(_metadata, aliases=self.aliases, places=places, time_ns=node.end_time_ns)
        inputs = [
            [dressed(one) for one in given] if isinstance(given, list) else dressed(given)
            for given in node.extra_fields.inputs
        ]
        node.extra_fields = Fields(node.extra_fields, inputs=inputs)

    def _call(self, node: Node, places: Places) -> None:
        fields = node.extra_fields
        dressed = functools.partial(_metadata, aliases=self.aliases, places=places, time_ns=node.end_time_ns)
        values: dict[str, object] = {}
        caller = _caller(node)
        if caller is not None and fields.caller.file_name.startswith(OWN_FILES):
            values["caller"] = caller.extra_fields.callsite
        if getattr(fields, "module", None) is not None:
            parameters = [(name, dressed(value), dressed(grad)) for name, value, grad in fields.module.parameters]
            values["module"] = Fields(fields.module, parameters=parameters)
        if getattr(fields, "optimizer", None) is not None:
            parameters = [
                (dressed(value), dressed(grad), [(name, dressed(held)) for name, held in state])
                for value, grad, state in fields.optimizer.parameters
            ]
            values["optimizer"] = Fields(fields.optimizer, parameters=parameters)
        if values:
            node.extra_fields = Fields(fields, **values)

    def _number(self) -> None:
        """Number tensors and allocations without gaps: the emulation's own had numbers too."""
        said = [fields for node in self.nodes() for fields in _numbered(node)]
        for name, first in (("id", 0), ("allocation_id", 1)):
            numbers = sorted({getattr(fields, name) for fields in said} - {None})
            short = {number: place for place, number in enumerate(numbers, first)}
            for fields in said:
                setattr(fields, name, short.get(getattr(fields, name)))


class Allocated(NamedTuple):
    """What an allocation says of itself; sizes in bytes, negative where memory is given back."""

    ptr: int
    alloc_size: int
    total_allocated: int
    total_reserved: int
    device: torch.device


Places = Mapping[int, tuple[list[int], list[Taken | None]]]
"""For each pointer to values: from which ns of the profiler's clock on they are whose; None on the host."""


def name_of(event: _ProfilerEvent | Node) -> str:
    """An event's name; the names of some built-in functions are no text."""
    try:
        return event.name
    except UnicodeDecodeError:
        return ""


def _package(function: str) -> str:
    """The package of a function that the profiler calls "torch/nn/modules/module.py(1739): _call_impl"."""
    return function.partition("/")[0].partition(".py(")[0]


def _led_somewhere(node: Node, parent: Node | None) -> list[Node]:
    """What is shown of a function that ours called, and of what stands in for one: where it led to something."""
    if node.stands_in and any(child.tag in PYTHON for child in node.children):  # not PyTorch's: there is more below it
        for child in node.children:
            child.parent = parent
        return node.children
    return [node] if node.children or not (node.from_ours or node.stands_in) else []


def _asks_for_ours(children: list[_ProfilerEvent], at: int) -> bool:
    """Whether an event is the look-up that leads to the emulation's mode."""
    if RULES not in name_of(children[at]) or at + 1 == len(children):
        return False
    name = name_of(children[at + 1])
    return name in HIDDEN or name.startswith(OWN_FILES)


def _caller(node: Node) -> Node | None:
    """The function of Python's that is shown round an event."""
    found = node.parent
    while found is not None and found.tag != _EventType.PyCall:
        found = found.parent
    return found


def _key(node: Node) -> tuple[int, int]:
    """What tells an allocation from others: its pointer and the profiler's ns; of other events, nobody's."""
    if node.tag != _EventType.Allocation:
        return -1, -1
    return node._stock.extra_fields.ptr, node._stock.start_time_ns  # type: ignore[union-attr]


def _metadata(
    tensor: object, aliases: Mapping[int, torch._C._profiler._TensorMetadata], places: Places, time_ns: int
) -> object:
    """A tensor's metadata, on its device at that moment; anything else as it is."""
    if not isinstance(tensor, METADATA):
        return tensor
    tensor = aliases.get(-1 if tensor.id is None else tensor.id, tensor)
    times, owners = places.get(tensor.storage_data_ptr or 0, ([], []))
    at = bisect_right(times, time_ns) - 1
    taken = owners[at] if at >= 0 else None
    if taken is None:
        return Fields(tensor)
    return Fields(tensor, device=torch.device("cuda", taken.device), storage_data_ptr=taken.address)


def _numbered(node: Node) -> Iterator[Fields]:
    """What an event holds that has numbers."""
    fields = node.extra_fields
    if type(fields) is not Fields:
        return
    if node.tag == _EventType.Allocation:
        yield fields
        return
    parts = [getattr(fields, name, None) for name in ("module", "optimizer")]
    held: list[object] = [*getattr(fields, "inputs", ()), *(part.parameters for part in parts if part is not None)]
    while held:
        one = held.pop()
        if isinstance(one, (list, tuple)):
            held += one
        elif type(one) is Fields:
            yield one
