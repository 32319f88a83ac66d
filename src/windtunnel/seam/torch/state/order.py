"""Which memory an operator touches, told to the machine: always once several streams exist, and at times before.

Before the first side stream nothing can race, but what comes then may race with what was: the operators since the
host's last synchronization are watched, as far as that costs next to nothing in the long run.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable

import torch

from windtunnel.machine.machine import Range
from windtunnel.machine.order import Access, Accesses, freed
from windtunnel.machine.overlap import Strided, strided
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.blank import wrote
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.state.crossings import Crossings
from windtunnel.seam.torch.state.late import byte_range
from windtunnel.seam.torch.state.leaves import Leaves, is_leaf
from windtunnel.seam.torch.state.stale_nodes import MISMATCH, Node, examine, handed, warns
from windtunnel.seam.torch.state.unfilled import Unfilled
from windtunnel.seam.torch.tags import Tag, device_of, parts_of, storage_of, tag_of, unwrapped

current_node: Callable[[], torch.autograd.graph.Node | None] = torch._C._current_autograd_node
get_sequence = torch._C._autograd._get_sequence_nr
MOST_NODES = 1 << 17
WATCHED = 128
"""How many operators are watched from the beginning, or from a synchronization, before there is a side stream."""
SELDOM = 50
"""Of how many operators one may be watched in the long run: watching costs half as much again as the operator."""
FEWEST = 16
"""How many are watched in one go, at least: beginning and ending costs as much as a few of them."""
MOST_SWITCHES = 1 << 16
"""How many changes of the current stream a thread remembers, at most."""
MOST_THREADS = 64
"""Of how many threads the nodes are known; a step of nn.DataParallel makes as many as there are GPUs."""


class Order:
    """Reads and writes per operator, and the stream that a backward node runs on: its forward's.

    An autograd node carries the sequence number that the thread's counter had when its forward ran; the counter is
    read after each forward operator, and whenever another stream is made current. Each thread counts for itself, so
    what is known of nodes is kept by thread. Leaves have nodes without a number (`Leaves`).
    """

    def __init__(self, core: Core, unfilled: Unfilled) -> None:
        self.core = core
        self.unfilled = unfilled
        self._forward: deque[dict[int, Stream]] = deque(maxlen=MOST_THREADS)  # by sequence number, one a thread
        self.leaves = Leaves()
        self._redirected: dict[Node, Stream] = {}  # nodes that run on a captured stream instead of their own
        self._warned = False
        self._made_aside = False
        self._window = self._left = WATCHED  # operators to watch before a side stream exists: at a time, still
        self._spent = 0
        self._used: dict[int, dict[int, list[Stream]]] = {}  # by thread and device

    def begin_streams(self) -> None:
        """A side stream is about to be made: from the first one on, accesses are ordered."""
        machine = self.core.machine
        if not machine.concurrent:
            self.leaves.begin([device.default_stream for device in machine.devices])
            machine.begin_streams()

    def switch(self, device: int, stream: Stream) -> None:
        """Another stream is this thread's current one: autograd nodes that are made from now on belong to it.

        A backward node that goes back to its own stream, as at the end of `with torch.cuda.stream(...)`, chooses none.
        """
        local = self.core.local
        if local.callers is not None:
            node = local.choosing = current_node()
            if node is not None and stream is (self._redirected.get(node) or self._node_stream(node, device)):
                stream = local.callers[device]
        local.streams[device] = stream
        self._sides()
        local.switches.append((get_sequence(), tuple(local.streams)))
        if len(local.switches) > MOST_SWITCHES:
            del local.switches[: MOST_SWITCHES // 2]

    def stream_of(self, device: int, stream: Stream) -> Stream:
        """The stream that the operator now being dispatched runs on."""
        node = current_node()
        if node is None:
            forward = self._own()
            if len(forward) > MOST_NODES:
                forward.clear()
            # The first operator after a node was made belongs to that node's forward.
            forward.setdefault(get_sequence() - 1, stream)
            return stream
        return self._forward_stream(node, device, stream)

    def current(self, device: int, stream: Stream) -> Stream:
        """What `torch.cuda.current_stream` says: in a backward function, the stream of its forward."""
        node = current_node()
        return stream if node is None else self._forward_stream(node, device, stream)

    def _forward_stream(self, node: Node, device: int, stream: Stream) -> Stream:
        """The stream that the engine runs a node on, and lets wait for those of the nodes before it."""
        if self._chosen(node, device, stream):
            return stream  # for which the engine waits neither before nor after
        stream = self.core.local.streams[device]
        found = self._redirected.get(node) or self._node_stream(node, device)
        if found is None or found.device != device:
            found = stream
        self._backward(node, found, stream)
        return found

    def _node_stream(self, node: Node | None, device: int) -> Stream | None:
        """The stream that the engine runs a node on, None of a leaf of which it isn't known; the caller has no node."""
        if node is None:
            return self.core.local.streams[device]
        leaf = getattr(node, "variable", None)
        return self._made_on(node._sequence_nr(), device) if leaf is None else self.leaves.stream_of(node)

    def _made_on(self, number: int, device: int) -> Stream:
        """The stream of a node's forward: this thread's, else another's that used the device (nn.DataParallel's)."""
        switches = self.core.local.switches
        if switches and number >= switches[0][0]:
            for nodes in (self._own(), *reversed(self._forward)):
                found = nodes.get(number)
                if found is not None and found.device == device:
                    return found
        last = bisect_right(switches, number, key=lambda switch: switch[0]) - 1
        return switches[last][1][device] if last >= 0 else self.core.machine.devices[device].default_stream

    def _own(self) -> dict[int, Stream]:
        """The nodes of this thread's forward passes."""
        local = self.core.local
        if local.nodes is None:
            local.nodes = {}
            self._forward.append(local.nodes)
        return local.nodes

    def _chosen(self, node: Node, device: int, stream: Stream) -> bool:
        """Whether the program chose this stream within this node of backward: in a hook, or a function of its own.

        The engine sets the streams back after each node (`parent_stream_guard`, torch/csrc/autograd/engine.cpp).
        """
        local = self.core.local
        if local.callers is None or stream is local.callers[device]:
            return False
        if local.choosing is node:
            return True
        local.streams[:] = local.callers
        local.choosing = None
        return False

    def _backward(self, node: Node, found: Stream, current: Stream) -> None:
        # The engine makes a node's stream wait for those of the nodes that feed it, and the first one for the
        # caller's: where nothing is known of the nodes, hold both as a barrier where the stream changes.
        local = self.core.local
        devices = self._used.setdefault(local.host.index, {})
        used = devices.setdefault(found.device, [current])
        if local.crossings is not None:
            for source in local.crossings.before(node, found):
                self.core.machine.barrier(local.host, source, found)
        elif used[-1] is not found:
            self.core.machine.barrier(local.host, used[-1], found)
        if used[-1] is not found:
            used.append(found)

    def backward_ends(self) -> None:
        """The caller's current streams wait for all streams that backward used."""
        core = self.core
        for device, used in self._used.pop(core.local.host.index, {}).items():
            current = core.local.streams[device]
            for stream in dict.fromkeys(used):
                if stream is not current:
                    core.machine.barrier(core.local.host, stream, current)
        if core.local.callers is None:
            self._redirected.clear()

    def backward_begins(self, roots: Iterable[object], inputs: Iterable[object]) -> bool:
        """The engine is about to run; returns whether it will warn of a leaf whose node has another stream.

        Raises:
            RuntimeError: the streams of its nodes forbid that it is captured.
        """
        local = self.core.local
        differ = self.leaves.differ and not self._warned and warns()
        captured = any(stream.capture is not None for stream in local.streams)
        several = self._sides() or self.leaves.differ
        if not (captured or several):
            return False
        edges = list(handed(roots, inputs, local.device))
        mismatch = (differ or captured) and examine(edges, self._node_stream, self._redirected)
        if several:
            local.crossings = Crossings(edges, self._node_stream, self._redirected)
        return mismatch and differ

    def _sides(self) -> bool:
        """Whether nodes were made on other streams than default ones."""
        switches = self.core.local.switches
        if not self._made_aside and switches:
            number, streams = switches[-1]
            self._made_aside = number < get_sequence() and any(stream.index for stream in streams)
        return self._made_aside

    def warn(self, line: int) -> None:
        """Give the engine's warning, once, as PyTorch does when the backward pass has ended; it names its own line."""
        self._warned = not torch.is_warn_always_enabled()
        graph = torch.autograd.graph
        registry = graph.__dict__.setdefault("__warningregistry__", {})
        warnings.warn_explicit(MISMATCH, UserWarning, graph.__file__, line, graph.__name__, registry)

    def leaf_used(self, tensor: torch.Tensor, device: int) -> None:
        """An operator takes a tensor of a device, whose gradient may have to be accumulated."""
        if torch.is_grad_enabled() and is_leaf(tensor):
            self.leaves.used(tensor, self.current(device, self.core.local.streams[device]))

    def _watched(self) -> None:
        """One more operator was seen before the first side stream; when enough were, those to come are not."""
        self._left -= 1
        if not self.unfilled.watched() and self._left <= 0:
            self.core.machine.watching = False

    def synchronized(self) -> None:
        """The host waited: where it knows all that was submitted, only what comes now can be in a race."""
        machine = self.core.machine
        known = machine.host_order
        submitted = 0
        for device in machine.devices:
            stream = device.default_stream
            if known.get(stream.agent, 0) < stream.epoch:
                return
            submitted += stream.epoch
        self._spent += self._window - self._left
        room = min(WATCHED, WATCHED + submitted // SELDOM - self._spent)
        self._left = self._window = room if room >= FEWEST else 0
        machine.watching = self._left > 0 or self.unfilled.any

    def accesses(self, call: Call, stream: Stream, site: int) -> None:
        """Tell the machine what the operator just submitted reads and writes."""
        if not self.core.machine.concurrent:
            self._watched()
        plan = call.plan
        mutated = set(map(id, call.written())) if plan.written or plan.card.hidden_writes else ()
        skip = 1 if plan.card.access == "writes" else 0
        reads: list[Range] = []
        writes: list[Range] = []
        unfilled = self.unfilled if self.unfilled.any else None
        recorded = self.core.machine.concurrent and torch.is_grad_enabled()
        for position, value in enumerate(call.given):
            for tensor in tensors_in((value,)):
                if id(tensor) in mutated:
                    self._add(writes, tensor)
                    wrote(tensor)
                elif position >= skip:
                    self._add(reads, tensor)
                    if unfilled is not None:
                        unfilled.read(tensor, plan, site)
                    if recorded and is_leaf(tensor) and device_of(tensor) == stream.device:
                        self.leaves.used(tensor, stream)
        if plan.fresh:
            made: list[Range] = []
            for tensor in tensors_in((call.out,)):
                self._add(made, tensor)
            written(made)
            given = {id(item[0]) for item in (*reads, *writes)}
            writes += [item for item in made if id(item[0]) not in given]  # some results are an argument itself
        self.core.machine.access(self.core.local.host, stream, reads, writes, site)

    def unwatched(self, tensors: Iterable[torch.Tensor], stream: Stream) -> None:
        """Keep of tensors that an operator wrote while nobody watches when that was."""
        for tensor in tensors:
            for part in (tensor,) if tensor.layout is torch.strided else parts_of(tensor):
                tag = tag_of(part)
                if tag.device >= 0:
                    tag.epoch = stream.epoch
                    if tag.blank is not None:
                        wrote(part)

    def copied(self, source: torch.Tensor, destination: torch.Tensor, stream: Stream, site: int) -> None:
        """Tell the machine what a transfer reads and writes."""
        reads: list[Range] = []
        writes: list[Range] = []
        self._add(reads, source)
        self._add(writes, destination)
        self.core.machine.access(self.core.local.host, stream, reads, writes, site)

    def read(self, tensor: torch.Tensor, stream: Stream, site: int) -> None:
        """Tell the machine that a transfer to the host reads a tensor."""
        reads: list[Range] = []
        self._add(reads, unwrapped(tensor))
        self.core.machine.access(self.core.local.host, stream, reads, [], site)

    def touched(self, reads: list[torch.Tensor], writes: list[torch.Tensor], stream: Stream, site: int) -> None:
        """Tell the machine what a collective, or a kernel of a compiled graph, reads and writes."""
        if not self.core.machine.concurrent:
            self._watched()
        read: list[Range] = []
        changed: list[Range] = []
        for tensor in reads:
            self._add(read, tensor)
        for tensor in writes:
            self._add(changed, tensor)
        written(changed)
        self.core.machine.access(self.core.local.host, stream, read, changed, site)

    def kernel(
        self, reads: Iterable[tuple[Tag, int, int]], writes: Iterable[tuple[Tag, int, int]], stream: Stream, site: int
    ) -> None:
        """Tell the machine what the program's own kernel, just submitted, reads and writes: ranges of bytes."""
        machine = self.core.machine
        if not machine.watching:
            for tag, _, _ in writes:
                tag.epoch = stream.epoch
            return
        if not machine.concurrent:
            self._watched()
        read: list[Range] = []
        written: list[Range] = []
        for ranges, found in ((read, reads), (written, writes)):
            for tag, start, end in found:
                if tag.device >= 0:
                    if tag.accesses is None or tag.epoch:
                        tag.accesses = self._earlier(tag)
                    ranges.append((tag, start, end, None))
        machine.access(self.core.local.host, stream, read, written, site)

    def whole(self, tags: Iterable[Tag]) -> list[Range]:
        """All the memory of storages on devices, by their tags."""
        ranges: list[Range] = []
        for tag in tags:
            if tag.device >= 0:
                if tag.accesses is None or tag.epoch:
                    tag.accesses = self._earlier(tag)
                ranges.append((tag, 0, tag.size, None))
        return ranges

    def _add(self, ranges: list[Range], tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self._add(ranges, part)
            return
        tag = storage_of(tensor)._wt
        if tag.device < 0:
            return
        if tensor.is_nested:
            size = tag.size if tensor.numel() else 0
        else:
            size = tensor.nbytes
        if not size:
            return
        if tag.accesses is None or tag.epoch:
            tag.accesses = self._earlier(tag)
        gaps: Strided | None = None
        if tensor.is_nested:
            start, end = 0, size
        elif tensor.is_contiguous():
            start = 0 if size == tag.size else int(tensor.storage_offset()) * tensor.element_size()
            end = start + size
        else:
            start, end = byte_range(tensor)
            gaps = strided(start, tensor.element_size(), tensor.shape, tensor.stride())
        ranges.append((tag, start, end, gaps))

    def _earlier(self, tag: Tag) -> Accesses:
        """What is known of a storage that was written while nobody watched, or before its block was reused."""
        made: Accesses = tag.accesses or Accesses()
        block = tag.block
        if tag.accesses is None and block is not None and isinstance(block.accesses, Accesses):
            made = freed(block.accesses, block.address, tag.size)
        if tag.epoch and tag.stream is not None:
            machine = self.core.machine
            lane = machine.lane(machine.host, tag.stream)
            epoch = min(tag.epoch, tag.stream.epoch)  # the kernel that was to come may not have come
            if not machine.host_knows(tag.stream.agent, epoch):
                made.add(Access(tag.stream.agent, epoch, 0, tag.size, True, lane, tag.site))
        tag.epoch = 0
        if block is not None:
            block.accesses = None
        return made


def written(ranges: Iterable[Range]) -> None:
    """Memory was written whose bytes are not told apart."""
    for tag, _, _, _ in ranges:
        tag.blank = None  # type: ignore[attr-defined]  # in the seam, a storage of the machine's is a tag


EVENLY = frozenset({"MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"})
"""Backward nodes that give each of the equal elements its part."""


def asks_the_host() -> bool:
    """Whether CUDA reads a value where the CPU's code does: not in the gradient of `max` and its like."""
    node = current_node()
    return node is None or node.name() not in EVENLY
