"""The Triton kernels that Inductor makes of a graph: what each one reads and writes, and what a launch of it costs.

Inductor's schedule says which nodes a kernel fuses, which buffers it reads and writes, and how (`accesses`). The
kernel's code is never compiled: on the emulated machine a launch is its price.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from windtunnel.machine.machine import Cost
from windtunnel.seam.torch.compiled import accesses
from windtunnel.seam.torch.compiled.answers import Answers, about
from windtunnel.seam.torch.state.reuse import reusing_whole
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of, storage_of
from windtunnel.trace.operation import Signature

KINDS = {"poi": "pointwise", "red": "reduction", "per": "persistent reduction", "tem": "template", "for": "foreach"}
"""What Inductor's names of kernels say after "triton_" (`get_kernel_category_by_source_code`)."""

LOOPS = ("pointwise", "reduction", "persistent reduction")
"""Kinds that are loop nests alone, whose accesses say what they move."""


class Virtual(Protocol):
    """What Inductor's code finds through `V`."""

    graph: accesses.GraphLowering


@runtime_checkable
class ScheduleNode(Protocol):
    """A node of Inductor's schedule, as far as it is asked."""

    def get_read_write_buffer_accesses(self, include_reads: bool, include_writes: bool) -> dict[str, int]:
        """Bytes of each buffer that it reads, or writes, where a kernel is no loop nest (templates)."""

    def estimate_flops(self) -> int | None:
        """Floating-point operations of a matrix product or a convolution."""


class Generated(Protocol):
    """A kernel that Inductor has written code for."""

    removed_buffers: Container[str]
    """Buffers that only its own nodes use, so that they never come to memory."""
    numels: Mapping[str, accesses.Expression]
    """How far it goes in each dimension of its grid ("x", "y", "z") and of its reduction ("r0_", "r1_")."""
    range_trees: Sequence[RangeTree]
    inside_reduction: bool


class RangeTree(Protocol):
    """A dimension of a kernel's grid or of its reduction."""

    is_reduction: bool


class KernelFacts(NamedTuple):
    """What Inductor's schedule says of one kernel, at the sizes that it was compiled for.

    `nodes` is how many nodes of the schedule it fuses, `rows` how many reductions it makes (none if it is pointwise),
    `again_bytes` what further reduction loops read again, `tiled` whether its grid has two dimensions, as for layouts
    that change, `operator` the one of `ATTENTION` whose work a template does. `sizes` is how many of its last arguments
    say how large it is; before them there may be other numbers, as where its random numbers begin (0: not known).
    """

    name: str
    kind: str
    read_bytes: int
    written_bytes: int
    flops: int
    nodes: int
    rows: int = 0
    again_bytes: int = 0
    tiled: bool = False
    operator: str = ""
    sizes: int = 0


class Schedule(threading.local):
    """What this thread compiles at the moment: the kernels of a graph, and whether Inductor works on one at all."""

    kernels: dict[str, KernelFacts] | None = None
    answers: Answers | None = None
    works = False


class InductorKernel:
    """What stands in the generated code for a compiled Triton kernel: it is launched, and computes nothing."""

    def __init__(self, state: State, name: str, facts: KernelFacts, answers: Answers) -> None:
        self.state = state
        self.name = name
        self.facts = facts
        self.answers = answers
        self.size: int | None = None  # of the first launch, whose sizes are those that it was compiled for
        self.costs: dict[tuple[int, int, int | None], Cost] = {}

    def run(self, *args: object, stream: object = None, **kwargs: object) -> None:
        """Launch the kernel on the current stream of the device that its tensors lie on."""
        state, machine = self.state, self.state.machine
        local = state.local
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        device = max(map(device_of, tensors), default=local.device)
        numbers = prod(value for value in args[-self.facts.sizes :] if type(value) is int and value > 0)
        if self.size is None:
            self.size = numbers
        flops = self.answers.take(about(self.facts.operator)) if self.facts.operator else None
        assert flops is None or isinstance(flops, int)
        key = device, numbers, flops
        cost = self.costs.get(key)
        if cost is None:
            scale = numbers / self.size if self.size else 1.0
            cost = self.costs[key] = machine.price(machine.devices[device], self.signature(scale, flops, tensors))
        on_device = [tensor for tensor in tensors if device_of(tensor) >= 0]
        launched(state, device, cost, on_device, on_device[-1:])

    def signature(self, scale: float, flops: int | None, tensors: Iterable[torch.Tensor]) -> Signature:
        """What the cost model needs to know of a launch at `scale` times the sizes that it was compiled for.

        `flops` are the operations of this launch where values decide how many they are.
        """
        facts = self.facts
        given = list(tensors)
        return Signature(
            self.name,
            tuple(tuple(map(int, tensor.shape)) for tensor in given),
            tuple(str(tensor.dtype)[6:] for tensor in given),
            len(given),
            round(facts.flops * scale) if flops is None else flops,
            round(facts.read_bytes * scale),
            round(facts.written_bytes * scale),
            (
                ("kind", facts.kind),
                ("nodes", facts.nodes),
                ("rows", round(facts.rows * scale)),
                ("again", round(facts.again_bytes * scale)),
                ("tiled", int(facts.tiled)),
            ),
        )


ATTENTION = ("flex_attention_backward", "flex_attention")
"""Operators of templates whose masks leave whole blocks of the work out."""


def launched(state: State, device: int, cost: Cost, tensors: list[torch.Tensor], written: list[torch.Tensor]) -> None:
    """Launch a kernel of a compiled graph on the current stream of a device."""
    machine, local = state.machine, state.local
    place = local.streams[device]
    cost = reusing_whole(machine, place, cost, (storage_of(tensor)._wt for tensor in tensors))
    if machine.watching:
        if machine.concurrent:
            place = state.order.stream_of(device, place)
        site = state.site()
        machine.launch(local.host, place, cost, site if machine.concurrent else 0)
        state.order.touched(tensors, written, place, site)
    else:
        machine.launch(local.host, place, cost)
        for tensor in tensors:
            storage_of(tensor)._wt.epoch = place.epoch


@contextmanager
def recorded(schedule: Schedule, answers: Answers) -> Iterator[dict[str, KernelFacts]]:
    """The kernels that this thread's compilation of one graph defines."""
    before = schedule.kernels, schedule.answers
    found: dict[str, KernelFacts] = {}
    schedule.kernels, schedule.answers = found, answers
    try:
        yield found
    finally:
        schedule.kernels, schedule.answers = before


def defining(schedule: Schedule, virtual: Virtual, stock: Callable[..., str]) -> Callable[..., str]:
    """`TritonScheduling.define_kernel`, which says what the kernel fuses."""

    @functools.wraps(stock)
    def define_kernel(self: object, src_code: str, node_schedule: Iterable[object], kernel: Generated) -> str:
        name = stock(self, src_code, node_schedule, kernel)
        if schedule.kernels is not None and name not in schedule.kernels:
            schedule.kernels[name] = _facts(name, list(node_schedule), kernel, virtual.graph)
        return name

    return define_kernel


def _facts(name: str, node_schedule: Sequence[object], kernel: Generated, graph: accesses.GraphLowering) -> KernelFacts:
    """What a kernel reads, writes and computes, by the nodes that it fuses."""
    parts = name.split("_")
    kind = KINDS.get(parts[1] if len(parts) > 1 else "", "pointwise")
    nodes = [node for node in node_schedule if isinstance(node, ScheduleNode)]
    if kind in LOOPS:
        moved = accesses.traffic(accesses.of_nodes(node_schedule, graph), kernel.removed_buffers)
        again = moved.again_bytes if kind == "reduction" else 0
        rows = 0 if kind == "pointwise" else accesses.rows(kernel.numels, graph)
        tiled = "y" in kernel.numels
        sizes = sum(not tree.is_reduction or kernel.inside_reduction for tree in kernel.range_trees)
        facts = KernelFacts(name, kind, moved.read_bytes, moved.written_bytes, 0, len(nodes), rows, again, tiled)
        return facts._replace(sizes=sizes)
    read, written = _buffers(nodes, kernel.removed_buffers)
    if kind != "template":
        return KernelFacts(name, kind, read, written, 0, len(nodes))
    flops = sum(node.estimate_flops() or 0 for node in nodes)
    sources = {str(origin.target) for node in nodes for origin in getattr(getattr(node, "node", None), "origins", ())}
    operator = next((name for name in ATTENTION if name in sources), "")
    return KernelFacts(name, kind, read, written, flops, len(nodes), operator=operator)


def _buffers(nodes: Iterable[ScheduleNode], inside: Container[str]) -> tuple[int, int]:
    """(bytes read, bytes written) by nodes that say no more than their buffers."""
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for node in nodes:
        for buffer, size in node.get_read_write_buffer_accesses(True, False).items():
            reads[buffer] = max(reads.get(buffer, 0), size)
        for buffer, size in node.get_read_write_buffer_accesses(False, True).items():
            writes[buffer] = max(writes.get(buffer, 0), size)
    read = sum(size for buffer, size in reads.items() if buffer not in writes)
    return read, sum(size for buffer, size in writes.items() if buffer not in inside)


class Own:
    """A Triton kernel of the program's own: the graph has computed it, and says what a launch costs."""

    def __init__(self, state: State, name: str, answers: Answers) -> None:
        self.state = state
        self.name = name
        self.answers = answers

    def run(self, *args: object, **kwargs: object) -> None:
        """Launch it as often as the program does here: once, but for what its hooks launch."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        device = max(map(device_of, tensors), default=self.state.local.device)
        for kernel in self.answers.kernels(about(self.name)):
            written = [tensor for at, tensor in enumerate(tensors) if at in kernel.written]
            launched(self.state, device, kernel.cost, tensors, written)


class HostKernel:
    """What stands in the generated code for a C++ kernel on host tensors."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __call__(self, *args: object) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in args if isinstance(tensor, torch.Tensor))
        cost = self.state.machine.installed[0].cost
        self.state.local.host.now_ns += cost.host_operator_ns(size)
