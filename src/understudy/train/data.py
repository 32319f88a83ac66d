"""From what `fit` is given to batches on the device: loaders, tensors kept on the device, shares of a batch.

A feed yields (batch, size, total): the samples of this process in the batch, and those of all processes together.
A process without any gets a borrowed batch of size 0, so that every process takes every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from understudy import torch as us
from understudy.errors import UsageError
from understudy.train.prefetch import Prefetcher
from understudy.train.strategies import SingleDevice

Item = tuple[Any, int, int]
GATHERED_BYTES = 64 << 20  # rows are gathered in the epoch's order for so many bytes at a time


class Share(NamedTuple):
    """Rows `start` to `start + size` of the epoch's order are this process's part of a batch of `total` rows."""

    start: int
    size: int
    total: int

    @property
    def rows(self) -> int:
        """Rows to read: at least one, and two where there are (batch norm wants two), also where size is 0."""
        return self.size or min(self.total, 2)


def shares(rows: int, batch_size: int, strategy: SingleDevice, drop_last: bool = False, skip: int = 0) -> list[Share]:
    """The parts of rank `strategy.rank` in batches of `batch_size` a process; sizes of ranks differ by at most one."""
    rank, world = strategy.rank, strategy.world_size
    result = []
    for begin in range(skip, rows, batch_size * world):
        total = min(batch_size * world, rows - begin)
        if drop_last and total < batch_size * world:
            break
        low, high = total * rank // world, total * (rank + 1) // world
        result.append(Share(begin + low if high > low else begin, high - low, total))
    return result


def epoch_order(rows: int, seed: int, epoch: int) -> torch.Tensor:
    """A permutation of 0..rows-1 that depends on nothing else: the same on every device, rank and resume."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(rows, generator=generator)


def batch_size_of(batch: Any) -> int:
    """The length of the first dimension of the first tensor of a batch."""
    while not isinstance(batch, torch.Tensor):
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()))
        elif isinstance(batch, list | tuple) and batch:
            batch = batch[0]
        else:
            batch = next(us.tensors_in(batch), None)
            if batch is None:
                raise UsageError("a batch without any tensor cannot be trained on: let the loader give tensors.")
    return batch.shape[0] if batch.dim() else 1


class Tensors:
    """Data that fits in memory: tensors of equal length, cut into batches by the Trainer on the device itself.

    `Tensors(X, y, batch_size=128)` trains on batches (X[i], y[i]); a single dict of tensors gives dicts. They are
    copied to the device once, where that leaves half of its free memory, and shuffled there anew for each epoch.
    """

    def __init__(self, *tensors: Any, batch_size: int = 32, shuffle: bool = True, drop_last: bool = False) -> None:
        self.keys = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], Mapping) else None
        self.tensors: tuple[torch.Tensor, ...] = tuple(tensors[0].values()) if self.keys is not None else tensors
        lengths = {len(tensor) for tensor in self.tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise UsageError(f"tensors of one data set have equal lengths of at least 1, and these have {lengths}.")
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} gives no batch: it is a number of samples of at least 1.")
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def batch(self, parts: tuple[torch.Tensor, ...]) -> Any:
        return dict(zip(self.keys, parts, strict=True)) if self.keys is not None else parts


class Feed:
    """Epochs of items. `steps` is their number in an epoch, None where nobody knows."""

    steps: int | None = None
    prefetcher: Prefetcher | None = None

    def epoch(self, number: int, batches: int = 0, samples: int = 0) -> Iterator[Item]:
        """The items of epoch `number`, after `batches` of them (`samples` rows over all processes)."""
        raise NotImplementedError

    def generators(self) -> list[torch.Generator]:
        """Random generators of the loader's own, whose state at the start of an epoch decides its order."""
        return []

    def batches_in(self, samples: int) -> int:
        """How many batches hold the first `samples` rows of an epoch."""
        return 0

    def read_ahead(self, ahead: bool) -> None:
        """Whether a batch may be taken from the loader before it is asked for."""
        if self.prefetcher is not None:
            self.prefetcher.ahead = ahead

    def on_device(self, batches: Iterable[Any], device: torch.device) -> Iterable[Any]:
        if device.type != "cuda":
            return batches
        ahead = self.prefetcher.ahead if self.prefetcher is not None else True
        self.prefetcher = Prefetcher(batches, device)
        self.prefetcher.ahead = ahead
        return self.prefetcher


class LoaderFeed(Feed):
    """The batches of any iterable, each the whole of a step of this process."""

    def __init__(self, loader: Iterable[Any], strategy: SingleDevice, prepare: Callable[[Any], Any] | None) -> None:
        self.loader, self.strategy, self.prepare = loader, strategy, prepare
        self.steps = len(loader) if isinstance(loader, Sized) and not _is_stream(loader) else None

    def generators(self) -> list[torch.Generator]:
        places = [self.loader, getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)]
        found = [getattr(place, "generator", None) for place in places]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    def batches_in(self, samples: int) -> int:
        size = getattr(self.loader, "batch_size", None)
        return samples // size if size else 0

    def epoch(self, number: int, batches: int = 0, samples: int = 0) -> Iterator[Item]:
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(number)
        source = iter(gathering(self.loader))
        for _ in islice(source, batches):
            pass
        return self._items(source)

    def _items(self, source: Iterator[Any]) -> Iterator[Item]:
        world = self.strategy.world_size
        if self.prepare is not None:
            placed: Iterable[Any] = map(self.prepare, source)
        else:
            placed = self.on_device(source, self.strategy.device)
        for batch in placed:
            size = batch_size_of(batch)
            yield batch, size, size * world


class SplitFeed(LoaderFeed):
    """The same batches in every process, each split among them along its first dimension."""

    def _items(self, source: Iterator[Any]) -> Iterator[Item]:
        plan: list[Share] = []

        def parts() -> Iterator[Any]:
            for batch in source:
                total = batch_size_of(batch)
                share = shares(total, -(-total // self.strategy.world_size), self.strategy)[0]
                plan.append(share)
                yield _rows(batch, share)

        placed = map(self.prepare, parts()) if self.prepare else self.on_device(parts(), self.strategy.device)
        for batch in placed:
            share = plan.pop(0)
            yield batch, share.size, share.total


def _rows(batch: Any, share: Share) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.dim() == 0 or tensor.shape[0] != share.total
        return tensor if whole else tensor[share.start : share.start + share.rows]

    return us.map_tensors(cut, batch)


class ShardedBatches:
    """A batch sampler: this process's rows of each batch of an epoch."""

    def __init__(self, loader: DataLoader[Any], strategy: SingleDevice, seed: int) -> None:
        self.loader, self.strategy, self.seed = loader, strategy, seed
        self.number, self.skip = 0, 0

    def plan(self, skip: int = 0) -> list[Share]:
        rows = len(self.loader.sampler)  # type: ignore[arg-type]  # checked by make_feed
        return shares(rows, self.loader.batch_size or 1, self.strategy, self.loader.drop_last, skip)

    def __len__(self) -> int:
        return len(self.plan())

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for share in self.plan(self.skip):
            yield order[share.start : share.start + share.rows]

    def _order(self) -> list[int]:
        sampler = self.loader.sampler
        if isinstance(sampler, SequentialSampler):
            return list(range(len(sampler)))
        if isinstance(sampler, RandomSampler) and not sampler.replacement:
            return list(epoch_order(len(sampler), self.seed, self.number).tolist())
        return list(self.strategy.broadcast(list(sampler)))  # drawn once, so that no row is seen twice or never


class ShardedFeed(Feed):
    """A DataLoader over an indexable data set, read by each process for its own rows alone."""

    def __init__(
        self, loader: DataLoader[Any], strategy: SingleDevice, seed: int, prepare: Callable[[Any], Any] | None
    ) -> None:
        self.strategy, self.prepare = strategy, prepare
        self.sampler = ShardedBatches(loader, strategy, seed)
        self.steps = len(self.sampler)
        options = {name: getattr(loader, name) for name in _KEPT_OPTIONS}
        self.loader: DataLoader[Any] = DataLoader(loader.dataset, batch_sampler=self.sampler, **options)

    def epoch(self, number: int, batches: int = 0, samples: int = 0) -> Iterator[Item]:
        self.sampler.number, self.sampler.skip = number, samples
        source = iter(self.loader)
        placed = map(self.prepare, source) if self.prepare else self.on_device(source, self.strategy.device)
        plan = self.sampler.plan(samples)
        return ((batch, share.size, share.total) for batch, share in zip(placed, plan, strict=True))


_KEPT_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


class TensorFeed(Feed):
    """Tensors on the device: each epoch gathers their rows in its order, some megabytes at a time, and slices those."""

    def __init__(self, data: Tensors, strategy: SingleDevice, seed: int, prepare: Callable[[Any], Any] | None) -> None:
        self.data, self.strategy, self.seed, self.prepare = data, strategy, seed, prepare
        self.plan = shares(len(data), data.batch_size, strategy, data.drop_last)
        self.steps = len(self.plan)
        device = strategy.device
        fits = device.type != "cuda" or 2 * data.size_bytes <= us.memory(device).free_bytes
        self.resident = fits and prepare is None
        self.tensors = tuple(us.to(tensor, device) if self.resident else tensor for tensor in data.tensors)

    def epoch(self, number: int, batches: int = 0, samples: int = 0) -> Iterator[Item]:
        data = self.data
        plan = shares(len(data), data.batch_size, self.strategy, data.drop_last, samples) if samples else self.plan
        order = epoch_order(len(data), self.seed, number) if data.shuffle else None
        if self.strategy.world_size > 1:
            order = torch.arange(len(data)) if order is None else order
            order = torch.cat([order[share.start : share.start + share.rows] for share in plan])
        elif order is not None and samples:
            order = order[samples:]
        device = self.tensors[0].device
        if order is not None and device.type == "cuda":
            order = order.pin_memory().to(device, non_blocking=True)
        parts = self._batches(plan, order, samples)
        if self.prepare is not None:
            placed: Iterable[Any] = map(self.prepare, parts)
        else:
            placed = parts if self.resident else self.on_device(parts, self.strategy.device)
        return ((batch, share.size, share.total) for batch, share in zip(placed, plan, strict=True))

    def _batches(self, plan: list[Share], order: torch.Tensor | None, first: int) -> Iterator[Any]:
        row_bytes = max(1, self.data.size_bytes // len(self.data))
        at_once = max(1, GATHERED_BYTES // (row_bytes * plan[0].rows)) if plan else 1
        begin = 0 if order is not None else first
        for chunk in (plan[i : i + at_once] for i in range(0, len(plan), at_once)):
            sizes = [share.rows for share in chunk]
            end = begin + sum(sizes)
            if order is None:
                rows = [tensor[begin:end] for tensor in self.tensors]
            else:
                rows = [tensor.index_select(0, order[begin:end]) for tensor in self.tensors]
            yield from map(self.data.batch, zip(*(torch.split(block, sizes) for block in rows), strict=True))
            begin = end


def make_feed(
    source: Any,
    strategy: SingleDevice,
    seed: int,
    prepare: Callable[[Any], Any] | None,
    batch_size: int,
    shuffle: bool,
) -> Feed:
    """The feed for what `fit`, `evaluate` or `predict` was given.

    A tensor, a tuple or dict of tensors, a TensorDataset and Tensors are data to be cut into batches of `batch_size`;
    a DataLoader gives its batches (over several processes `batch_size` each); any other iterable yields batches,
    which several processes share.
    """
    if isinstance(source, TensorDataset):
        source = tuple(source.tensors)
    is_data = isinstance(source, torch.Tensor) or (
        isinstance(source, tuple | Mapping)
        and all(isinstance(x, torch.Tensor) for x in (source.values() if isinstance(source, Mapping) else source))
    )
    if is_data:
        parts = source if isinstance(source, tuple) else (source,)
        source = Tensors(*parts, batch_size=batch_size, shuffle=shuffle)
    if isinstance(source, Tensors):
        return TensorFeed(source, strategy, seed, prepare)
    if not isinstance(source, Iterable):
        raise UsageError(f"batches cannot come from a {type(source).__name__}: give a DataLoader or tensors.")
    if strategy.world_size == 1 or isinstance(getattr(source, "sampler", None), DistributedSampler):
        return LoaderFeed(source, strategy, prepare)
    if isinstance(source, DataLoader) and not _is_stream(source) and type(source.batch_sampler) is BatchSampler:
        return ShardedFeed(source, strategy, seed, prepare)
    return SplitFeed(source, strategy, prepare)


class _Rows(Dataset[Any]):
    """A TensorDataset that hands out the rows of a whole batch at once."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [tensor[index] for tensor in self.tensors]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        return [tensor.index_select(0, rows) for tensor in self.tensors]


def _as_it_is(batch: Any) -> Any:
    return batch


def gathering(loader: Iterable[Any]) -> Iterable[Any]:
    """A loader of the same batches, bit for bit, that gathers rows where the given one would stack single samples.

    That is possible for a plain TensorDataset read in this process; any other loader is returned as it is.
    """
    if not isinstance(loader, DataLoader) or type(loader.dataset) is not TensorDataset:
        return loader
    ordinary = loader.collate_fn is default_collate and loader.num_workers == 0 and not loader.pin_memory
    if not ordinary or loader.batch_sampler is None or type(loader) is not DataLoader:
        return loader
    rows = _Rows(loader.dataset.tensors)
    return DataLoader(rows, batch_sampler=loader.batch_sampler, collate_fn=_as_it_is, generator=loader.generator)


def _is_stream(loader: Any) -> bool:
    return isinstance(getattr(loader, "dataset", None), IterableDataset)
