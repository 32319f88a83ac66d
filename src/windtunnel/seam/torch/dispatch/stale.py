"""`--async stale`: work on another stream that is not ordered after a write gets the bytes from before it.

By default values are computed in program order, so a program that forgot to wait still prints the right number and
only the finding tells of it. Here such a read really is too early: every write on a device keeps what it replaces (a
new tensor's memory counts as zeros) until the host knows the write to be done, and a reader on a stream that is not
ordered after it runs on those bytes. Of the executions that CUDA allows it is the one in which the writer is last.
Backward passes, whose streams the autograd engine orders, and other threads are left as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch

from windtunnel.machine.order import knows
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.dispatch.above import Above
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.order import current_node
from windtunnel.seam.torch.tags import Storage, Tag, bytes_in, storage_of, tag_of

Tensor = torch.Tensor


class Write(NamedTuple):
    """A write that the host does not know to be done: whose work it is, and the memory's bytes before it."""

    agent: int
    epoch: int
    before: Tensor


class StaleMode(Above):
    """Above the emulation's own mode: shows each operator the memory that its stream may already see."""

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(dispatch)
        self.state = dispatch.state
        self.writes: weakref.WeakKeyDictionary[Tag, list[Write]] = weakref.WeakKeyDictionary()

    def operator(self, call: Call) -> object:
        """Run it on the bytes that its stream may see, and keep those that it replaces."""
        if current_node() is not None:
            return call.func(*call.args, **call.kwargs)
        targets = _storages(call.written())
        skipped = 1 if call.plan.card.access == "writes" else 0
        newer = self._turn_back(_storages((*call.args[skipped:], *call.kwargs.values())), targets)
        before = {tag: _bytes(storage).clone() for tag, storage in targets.items()}
        try:
            out = call.func(*call.args, **call.kwargs)
        finally:
            for storage, latest in newer:
                _bytes(storage).copy_(latest)
        if call.plan.fresh:
            given = _storages(call.given)
            for tag, storage in _storages((out,)).items():
                # What shares an argument's memory is not new, whatever the schema says (`_unsafe_view`).
                if tag in given or tag in self.writes:
                    continue
                if not call.plan.card.launches:
                    _bytes(storage).zero_()
                else:
                    before[tag] = torch.zeros(storage.nbytes(), dtype=torch.uint8, device="cpu")
        for tag, old in before.items():
            self._remember(tag, old)
        return out

    def _turn_back(self, read: dict[Tag, Storage], targets: dict[Tag, Storage]) -> list[tuple[Storage, Tensor]]:
        """Put the bytes that a reader may see in place; returns what to put back where nothing writes."""
        newer = []
        for tag, storage in read.items():
            old = self._visible(tag)
            if old is not None and old.numel() == storage.nbytes():
                if tag not in targets:
                    newer.append((storage, _bytes(storage).clone()))
                _bytes(storage).copy_(old)
        return newer

    def _visible(self, tag: Tag) -> Tensor | None:
        """The bytes before the first write that the current stream is not ordered after; None when there is none."""
        stream: Stream = self.state.local.streams[tag.device]
        host = self.state.local.host.order
        pending = [one for one in self.writes.get(tag, ()) if not knows(host, one.agent, one.epoch)]
        if tag in self.writes:
            self.writes[tag] = pending
        for write in pending:
            if write.agent != stream.agent and not knows(stream.order, write.agent, write.epoch):
                return write.before
        return None

    def _remember(self, tag: Tag, before: Tensor) -> None:
        stream: Stream = self.state.local.streams[tag.device]
        self.writes.setdefault(tag, []).append(Write(stream.agent, stream.epoch, before))


def _storages(values: Iterable[object]) -> dict[Tag, Storage]:
    """The memory on devices that arguments cover, by tag."""
    found: dict[Tag, Storage] = {}
    for tensor in tensors_in(values):
        if tensor.layout is torch.strided and not tensor.is_meta:
            tag = tag_of(tensor)
            if tag.device >= 0 and tag.size:
                found[tag] = storage_of(tensor)
    return found


def _bytes(storage: Storage) -> Tensor:
    with torch._C._DisableTorchDispatch():
        return bytes_in(storage)
