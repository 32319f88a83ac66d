"""Batches copied to a GPU one ahead of their use, on a side stream, through pinned buffers that are reused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from understudy import torch as us
from understudy import vocabulary


class _Staging:
    """Pinned buffers for the tensors of one batch, and the event after which they may be written again."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._next = 0
        self._copied: Any = None

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

    def end(self, device: torch.device, stream: Any) -> Any:
        self._copied = us.recorded_event(device, stream)
        return self._copied


class Prefetcher:
    """Iterates over the batches of `loader` on `device`, with the next batch on its way while one is used.

    Batches may be nested lists, tuples, dicts and dataclasses; what is no tensor passes through. On the CPU the batches
    are the loader's own. With `ahead` set to False no batch is read before it is asked for; the Trainer does so
    before a checkpoint, so that the loader's position is the training's. Leaving the loop early, or an error in the
    loader, ends the loader's iterator.
    """

    def __init__(self, loader: Iterable[Any], device: us.Device) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.ahead = True

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # a TypeError of Python's own where it has no length

    def __iter__(self) -> Iterator[Any]:
        if self.device.type != "cuda":
            return iter(self.loader)
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        source = iter(self.loader)
        stream: Any = torch.cuda.Stream(self.device)
        stagings = [_Staging(), _Staging()]
        turn = 0
        end = object()
        coming: Any = None
        try:
            while True:
                current = coming if coming is not None else self._start(source, stream, stagings[turn], end)
                turn ^= coming is None
                coming = None
                if current is end:
                    return
                batch = self._arrive(current)
                if self.ahead:
                    coming = self._start(source, stream, stagings[turn], end)
                    turn ^= 1
                yield batch
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _start(self, source: Iterator[Any], stream: Any, staging: _Staging, end: object) -> Any:
        """Read a batch and begin its copies; `end` where there is none left."""
        try:
            host = next(source)
        except StopIteration:
            return end
        staging.begin()

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device == self.device:
                return tensor
            size_bytes = tensor.numel() * tensor.element_size()
            vocabulary.copied("the Prefetcher", tensor.device, self.device, size_bytes)
            plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_pinned()
            pinned = staging.stage(tensor.detach()) if plain else tensor
            return pinned.to(self.device, non_blocking=True)

        with torch.cuda.stream(stream):
            moved = us.map_tensors(move, host)
        return host, moved, staging.end(self.device, stream)

    def _arrive(self, started: Any) -> Any:
        """Make the current stream wait for the copies, and tell the allocator that it uses them."""
        _, moved, copied = started
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        for tensor in us.tensors_in(moved):
            if tensor.device.type == "cuda":
                tensor.record_stream(current)
        return moved
