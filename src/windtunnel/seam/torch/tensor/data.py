"""DataLoader on the host's modelled clock: what its workers take, and how long the program waits for them.

A worker is a real process with a clock of its own: what it does there (host operators, `time.sleep`) is priced as in
the program. It sends that price along with each batch, and what the batch took on this machine (`state/host_work`). In
the program, a worker begins a batch when it was asked for it and is free, and `next()` waits until the batch is ready.
That gives the same wait in every run, however fast this machine delivers. What is done outside PyTorch (decoding, pure
Python) has no part in it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType

import torch.utils.data
from torch.utils import _pytree as pytree
from torch.utils.data import _utils, dataloader

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.host_work import HostWork
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.state.thread_costs import BatchCost, files_read
from windtunnel.seam.torch.tags import is_physically_meta
from windtunnel.trace.operation import Kind

LoaderIterator = dataloader._BaseDataLoaderIter
WorkersIterator = dataloader._MultiProcessingDataLoaderIter
NAME = "DataLoader"
"""The name of rows that say how long `next()` of a loader took the program."""
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
LOOPS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")
"""Modules with the loop of a worker whose batches reach the methods that are replaced here."""
MOST_BATCHES, MOST_ELEMENTS = 4, 1 << 16
"""How many batches of a rank, and how many elements of each tensor, tell whether other ranks get the same ones."""


class Fetched:
    """A batch on its way from a worker, with what it took there in nanoseconds.

    `duration_ns` is modelled.
    """

    def __init__(self, data: object, duration_ns: int, made: BatchCost) -> None:
        self.data = data
        self.duration_ns = duration_ns
        self.made = made

    def pin_memory(self, device: object = None) -> Fetched:
        """The same with its tensors page-locked: what the loader's pinning thread asks of objects that it meets."""
        pin: Callable[..., object] = _utils.pin_memory.pin_memory
        data = pin(self.data) if device is None else pin(self.data, device)
        return Fetched(data, self.duration_ns, self.made)


class Workers:
    """When each batch of one loader's iterator was asked for, and when each worker is free; ns of the host's clock."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[int, int]] = {}  # batch -> (worker, when)
        self.free: dict[int, int] = {}

    def oldest(self, worker: int) -> int:
        """The batch that a worker was asked for first and has not delivered."""
        return min((batch for batch, (its, _) in self.asked.items() if its == worker), default=-1)

    def ready_ns(self, batch: int, duration_ns: int) -> int:
        """When a batch is ready, whose worker is busy with it until then."""
        worker, asked_ns = self.asked.pop(batch, (0, 0))
        ready = self.free[worker] = max(self.free.get(worker, 0), asked_ns) + duration_ns
        return ready


class Content:
    """What the first batches of a rank hold: ranks of equal content share their batches, as in tensor parallelism."""

    def __init__(self, state: State) -> None:
        self.facts = state.machine.trace.facts
        self.left = MOST_BATCHES if int(os.environ.get("WORLD_SIZE") or 1) > 1 else 0
        self.digest = hashlib.sha256()

    def add(self, index: object, data: object) -> None:
        """A batch, and the examples that its sampler chose; None where nobody chose."""
        if not self.left:
            return
        self.left -= 1
        self.digest.update(repr(index).encode())
        with torch._C._DisableTorchDispatch():
            for part in pytree.tree_leaves(data):
                if not isinstance(part, torch.Tensor):
                    self.digest.update(repr(part).encode() if isinstance(part, (str, bytes, int, float)) else b"")
                elif part.layout is torch.strided and not is_physically_meta(part):
                    some = part.detach().flatten()[:MOST_ELEMENTS].contiguous().view(torch.uint8)
                    self.digest.update(some.numpy().tobytes())
        self.facts["batches"] = self.digest.hexdigest()


def patches(state: State) -> list[Patch]:
    """The methods of PyTorch's loader through which batches pass."""
    fetch = _utils.fetch
    kinds = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    iterator = dataloader._MultiProcessingDataLoaderIter
    found = [Patch(kind, "fetch", _fetch(state, kind.fetch)) for kind in kinds] + _of_workers(state, iterator)
    base = dataloader._BaseDataLoaderIter
    found.append(Patch(base, "_next_index", _next_index(base._next_index)))
    found.append(Patch(base, "_reset", _reset(base._reset)))
    return [*found, Patch(base, "__next__", _next(state, Content(state), base.__next__))]


def modules(state: State) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """The same methods of torchdata's loader, whose iterator and whose workers' loop are its own."""
    return {STATEFUL: lambda module: _of_workers(state, module._StatefulMultiProcessingDataLoaderIter)}


def _of_workers(state: State, iterator: type[WorkersIterator]) -> list[Patch]:
    return [
        Patch(iterator, "_try_put_index", _put(state, iterator._try_put_index)),
        Patch(iterator, "_get_data", _get(state, iterator._get_data)),
        Patch(iterator, "_process_data", _process(state, iterator._process_data)),
    ]


def _next_index(stock: Callable[[LoaderIterator], Sequence[object]]) -> object:
    def next_index(self: LoaderIterator) -> object:
        index = stock(self)
        if self._auto_collation:  # else an index is one item, which may be a batch that the dataset made
            self.__dict__.setdefault("_wt_batches", deque()).append(index)
        return index

    return next_index


def _reset(stock: Callable[..., None]) -> object:
    def reset(self: LoaderIterator, *args: object, **kwargs: object) -> None:
        self.__dict__.pop("_wt_batches", None)
        stock(self, *args, **kwargs)

    return reset


def _made(work: HostWork | None, fetch: Callable[[], object]) -> tuple[BatchCost, object]:
    """What a worker fetches, and what that takes here."""
    if work is None or not work.is_here():
        return BatchCost(), fetch()
    work.in_worker = True
    begin_ns, before = work.feed(1), files_read()
    blocked_ns = work.all.blocked_ns
    try:
        data = fetch()
        lines = work.made_here()
        worked_ns = work.close() - begin_ns
        return BatchCost(worked_ns, work.all.blocked_ns - blocked_ns, lines, files_read().since(before)), data
    finally:
        work.feed(-1)


def _fetch(state: State, stock: Callable[..., object]) -> object:
    def fetch(self: object, possibly_batched_index: object) -> object:
        is_in_loop = sys._getframe(1).f_globals.get("__name__") in LOOPS
        if torch.utils.data.get_worker_info() is None or not is_in_loop:
            return stock(self, possibly_batched_index)
        begin = state.host().now_ns
        made, data = _made(state.work, lambda: stock(self, possibly_batched_index))
        return Fetched(data, state.host().now_ns - begin, made)

    return fetch


def _put(state: State, stock: Callable[[WorkersIterator], None]) -> object:
    def try_put_index(self: WorkersIterator) -> None:
        before = self._send_idx
        stock(self)
        if self._send_idx > before:
            workers = self.__dict__.setdefault("_wt_workers", Workers())
            workers.asked[before] = self._task_info[before][0], state.host().now_ns
            state.loaders.add(self)

    return try_put_index


def _get(state: State, stock: Callable[[WorkersIterator], object]) -> object:
    def get_data(self: WorkersIterator) -> object:
        # Which call of this unpacks which batch depends on when real workers deliver: none of it takes modelled time.
        host = state.host()
        now_ns = host.now_ns
        with state.apart():  # what it takes is what the workers say
            data = stock(self)
        host.now_ns = now_ns
        return data

    return get_data


def _process(state: State, stock: Callable[..., object]) -> object:
    def process_data(self: WorkersIterator, data: object, *rest: int) -> object:
        if isinstance(data, Fetched):
            workers = self.__dict__.setdefault("_wt_workers", Workers())
            # From torch 2.8 on the caller names the worker and has counted the batch already.
            batch = workers.oldest(rest[0]) if rest else self._rcvd_idx
            state.host().wait_until(workers.ready_ns(batch, data.duration_ns))
            if state.work is not None:
                state.work.made_batch(data.made, self._num_workers)
            data = data.data
        return stock(self, data, *rest)

    return process_data


def _fed(work: HostWork | None, loader: LoaderIterator, stock: Callable[[LoaderIterator], object]) -> object:
    """The next batch of a loader; what making it takes here is noted."""
    if work is None or not work.is_here():
        return stock(loader)
    begin_ns = work.feed(1)
    try:
        data = stock(loader)
        if loader._num_workers == 0:
            work.made_batch(BatchCost(work.close() - begin_ns))
        return data
    finally:
        work.feed(-1)


def _next(state: State, content: Content, stock: Callable[[LoaderIterator], object]) -> object:
    def following(self: LoaderIterator) -> object:
        host = state.host()
        begin = host.now_ns
        try:
            data = _fed(state.work, self, stock)
            index = self.__dict__["_wt_batches"].popleft() if self.__dict__.get("_wt_batches") else None
            if index is not None:
                state.machine.mark(host, Kind.BATCH, NAME, len(index), state.site())
            content.add(index, data)
            return data
        finally:
            state.host()
            if host.now_ns > begin:
                duration = host.now_ns - begin
                state.machine.mark(host, Kind.HOST, NAME, duration, state.site(), duration)

    return following
