"""Batches on their way to the GPU while the one before is at work."""

from collections.abc import Iterable, Iterator

import torch

Batch = tuple[torch.Tensor, ...]


class Prefetcher:
    """Iterates over batches on `device`; the copy of the next one runs on a stream of its own."""

    def __init__(self, batches: Iterable[Batch], device: torch.device | str) -> None:
        self.batches = batches
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device)

    def __iter__(self) -> Iterator[Batch]:
        ahead = None
        for batch in self.batches:
            following = self._send(batch)
            if ahead is not None:
                yield self._receive(*ahead)
            ahead = following
        if ahead is not None:
            yield self._receive(*ahead)

    def _send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(self.stream):
            sent = tuple(tensor.pin_memory().to(self.device, non_blocking=True) for tensor in batch)
            return sent, self.stream.record_event()

    def _receive(self, batch: Batch, arrived: torch.cuda.Event) -> Batch:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        for tensor in batch:
            tensor.record_stream(current)
        return batch
