"""Which memory an operator touches, told to the machine once several streams exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from understudy.machine.machine import Range
from understudy.machine.order import Access, Accesses
from understudy.machine.stream import Stream
from understudy.seam.torch.late import extent
from understudy.seam.torch.operators import Plan, tensors_in
from understudy.seam.torch.tables import WRITES_ONLY
from understudy.seam.torch.tags import storage_of

if TYPE_CHECKING:
    from understudy.seam.torch.state import State

current_node: Callable[[], Any] = torch._C._current_autograd_node
get_sequence = torch._C._autograd._get_sequence_nr
MOST_NODES = 1 << 20


class Order:
    """Reads and writes per operator, and the stream that a backward node runs on: its forward's.

    An autograd node carries the sequence number that the thread's counter had when its forward ran; the counter is
    read after each forward operator.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._forward: dict[int, Stream] = {}
        self._left: Stream | None = None

    def stream_of(self, device: int, stream: Stream) -> Stream:
        """The stream that the operator now being dispatched runs on."""
        node = current_node()
        if node is None:
            if torch.is_grad_enabled() and stream.index:
                if len(self._forward) > MOST_NODES:
                    self._forward.clear()
                self._forward[get_sequence() - 1] = stream
            return stream
        forward = self._forward.get(node._sequence_nr())
        found = stream if forward is None or forward.device != device else forward
        self._backward(found, stream)
        return found

    def _backward(self, found: Stream, current: Stream) -> None:
        # The engine makes a node's stream wait for the streams of the nodes that feed it, and the caller's streams
        # wait at the end of backward: hold both as a barrier where the stream changes.
        last = self._left or current
        if last is not found and last.device == found.device:
            self.state.machine.barrier(self.state.local.host, last, found)
        self._left = found

    def backward_ends(self) -> None:
        """The caller's current streams wait for all streams that backward used."""
        last = self._left
        self._left = None
        if last is not None:
            current = self.state.local.streams[last.device]
            if current is not last:
                self.state.machine.barrier(self.state.local.host, last, current)

    def accesses(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, stream: Stream, site: int
    ) -> None:
        """Tell the machine what the operator just submitted reads and writes."""
        mutated = {id(t) for i in plan.mutated if i < len(args) for t in tensors_in((args[i],))}
        mutated |= {id(t) for name in plan.mutated_keywords for t in tensors_in((kwargs.get(name),))}
        skip = 1 if plan.name in WRITES_ONLY else 0
        reads: list[Range] = []
        writes: list[Range] = []
        for position, value in enumerate((*args, *kwargs.values())):
            for tensor in tensors_in((value,)):
                if id(tensor) in mutated:
                    self._add(writes, tensor)
                elif position >= skip:
                    self._add(reads, tensor)
        if plan.fresh:
            for tensor in tensors_in((out,)):
                self._add(writes, tensor)
        state = self.state
        state.machine.access(state.local.host, stream, reads, writes, site)

    def copied(self, source: torch.Tensor, destination: torch.Tensor, stream: Stream, site: int) -> None:
        """Tell the machine what a transfer reads and writes."""
        reads: list[Range] = []
        writes: list[Range] = []
        self._add(reads, source)
        self._add(writes, destination)
        state = self.state
        state.machine.access(state.local.host, stream, reads, writes, site)

    def read(self, tensor: torch.Tensor, stream: Stream, site: int) -> None:
        """Tell the machine that a transfer to the host reads a tensor."""
        reads: list[Range] = []
        self._add(reads, tensor)
        state = self.state
        state.machine.access(state.local.host, stream, reads, [], site)

    def touched(self, reads: list[torch.Tensor], writes: list[torch.Tensor], stream: Stream, site: int) -> None:
        """Tell the machine what a collective reads and writes."""
        read: list[Range] = []
        written: list[Range] = []
        for tensor in reads:
            self._add(read, tensor)
        for tensor in writes:
            self._add(written, tensor)
        state = self.state
        state.machine.access(state.local.host, stream, read, written, site)

    def _add(self, ranges: list[Range], tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return
        tag = storage_of(tensor)._us
        if tag.device < 0:
            return
        if tag.accesses is None:
            tag.accesses = self._earlier(tag)
        start, end = extent(tensor)
        ranges.append((tag, start, end))

    def _earlier(self, tag: Any) -> Accesses:
        """What is known of a storage that was written before accesses were kept, or before its block was reused."""
        made = Accesses()
        block = tag.block
        if block is not None and isinstance(block.accesses, Accesses):
            made.writes = [*block.accesses.writes, *block.accesses.reads]
        elif tag.epoch and tag.stream is not None:
            machine = self.state.machine
            lane = machine.lane(machine.host, tag.stream)
            made.writes = [Access(tag.stream.agent, tag.epoch, 0, tag.size, True, lane, tag.site)]
        if block is not None:
            block.accesses = None
        return made
