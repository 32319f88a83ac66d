"""Copies batches to a GPU one step ahead of their use, on a side stream, through reused pinned buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel import vocabulary


class _Staging:
    """Pinned buffers for one batch's tensors, and the event after which they may be overwritten."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._next = 0
        self._copied: torch.Event | None = None

    def begin(self) -> None:
        if self._copied is not None and not self._copied.query():
            self._copied.synchronize()
        self._next = 0

    def stage(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of `tensor` in pinned memory that stays untouched until `begin`."""
        if self._next == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8, pin_memory=True))
        size_bytes = tensor.numel() * tensor.element_size()
        if self._buffers[self._next].numel() < size_bytes:
            self._buffers[self._next] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        buffer = self._buffers[self._next][:size_bytes].view(tensor.dtype).view(tensor.shape)
        self._next += 1
        return buffer.copy_(tensor)

    def end(self, device: torch.device, stream: torch.Stream) -> torch.Event:
        self._copied = copied = wt.recorded_event(device, stream)
        return copied


class _End:
    """Takes a batch's place when the loader has ended, with or without an error."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def leave(self) -> None:
        if self.error is not None:
            raise self.error


class _Started(NamedTuple):
    """A batch being copied: the loader's own, kept until the copy ends, the one on the device, and the copy's event."""

    host: object
    batch: object
    copied: torch.Event | None


class _Copies:
    """Copies of batches on a side stream, through two alternating sets of buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._stagings = [_Staging(), _Staging()]
        self._borrowed: torch.Event | None = None  # the event after which the loader may write to its last batch again

    def start(self, source: Iterator[object]) -> _Started:
        """Read a batch and begin its copies; an _End if there is none left."""
        if self._borrowed is not None and not self._borrowed.query():
            self._borrowed.synchronize()
        self._borrowed = None
        try:
            host = next(source)
        except StopIteration:
            return _Started(None, _End(None), None)
        except Exception as error:  # noqa: BLE001  (raised once the batches before it are used)
            return _Started(None, _End(error), None)
        self._stagings.reverse()
        staging = self._stagings[0]
        staging.begin()
        borrows = False

        def move(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal borrows
            if tensor.device == self.device:
                return tensor
            size_bytes = tensor.numel() * tensor.element_size()
            vocabulary.copied("the Prefetcher", tensor.device, self.device, size_bytes)
            if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_pinned():
                tensor = staging.stage(tensor.detach())
            else:
                borrows = True
            return tensor.to(self.device, non_blocking=True)

        with torch.cuda.stream(self._stream):
            moved = wt.map_tensors(move, host)
        copied = staging.end(self.device, self._stream)
        self._borrowed = copied if borrows else None
        return _Started(host, moved, copied)


class Prefetcher:
    """Iterates over the batches of `loader` on `device`, copying the next batch while one is used.

    Batches may be nested lists, tuples, dicts and dataclasses; other values pass through. On the CPU the batches are
    the loader's own. The loader may reuse the memory of a batch for the next one. With `ahead` set to False no batch is
    read before it is requested; the Trainer uses that before a checkpoint, so that the loader's position is the
    training's. Leaving the loop early, or an error in the loader, ends the loader's iterator; the error is raised when
    its batch is requested.
    """

    def __init__(self, loader: Iterable[object], device: wt.Device) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.ahead = True

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # a TypeError of Python's own where it has no length

    def __iter__(self) -> Iterator[object]:
        if self.device.type != "cuda":
            return iter(self.loader)
        return self._batches()

    def _batches(self) -> Iterator[object]:
        source = iter(self.loader)
        copies = _Copies(self.device)
        coming: _Started | None = None
        try:
            while True:
                current = coming or copies.start(source)
                coming = None
                if isinstance(current.batch, _End):
                    current.batch.leave()
                    return
                batch = self._arrive(current)
                if self.ahead:
                    coming = copies.start(source)
                yield batch
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _arrive(self, started: _Started) -> object:
        """Make the current stream wait for the copies, and tell the allocator that it uses them."""
        current = torch.cuda.current_stream(self.device)
        if started.copied is not None:
            current.wait_event(started.copied)
        for tensor in wt.tensors_in(started.batch):
            if tensor.device.type == "cuda":
                tensor.record_stream(current)
        return started.batch
