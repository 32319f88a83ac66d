"""Data divided among several processes, so that every row of an epoch is seen once; refused if that cannot be ensured.

Indexable data is divided by rows, in an order that every process knows: it depends on the seed alone, or each process
draws it from the random state of the first, and the results are compared. Data that can only be iterated over is read
by every process, and the processes take its batches in turn, provided that all of them read the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.nested import children_of
from windtunnel.train.data import (
    Feed,
    Item,
    LoaderFeed,
    Share,
    TensorFeed,
    Tensors,
    batch_size_of,
    begun,
    epoch_order,
    generators_of,
    is_stream,
    require_batches,
    shares,
    tell_epoch,
)
from windtunnel.train.reproducible import random_state, restore_random_state
from windtunnel.train.strategies import SingleDevice

Prepare = Callable[[object], object] | None
SAMPLED = 1 << 16  # elements of a tensor that are compared between processes


def make_feed(source: Any, strategy: SingleDevice, seed: int, prepare: Prepare, shuffle: bool, ordered: bool) -> Feed:
    """The feed for one of several processes: see `windtunnel.train.feed.make_feed`."""
    if isinstance(source, Tensors):
        _require_the_same(strategy, fingerprint(source.tensors), "tensors")
        return TensorFeed(source, strategy, seed, prepare, shuffle)
    require_batches(source)
    sampler = getattr(source, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        if not ordered:
            return LoaderFeed(source, strategy, prepare)
        source = _without_distributed_sampler(source, sampler)
    if isinstance(source, DataLoader) and not is_stream(source):
        _require_the_same(strategy, _fingerprint_of_data(source.dataset), "data sets")
        if source.batch_size is not None and type(source.batch_sampler) is BatchSampler:  # the DataLoader's own
            return RowsFeed(source, strategy, seed, prepare)
        return BatchesFeed(source, strategy, seed, prepare)
    return TurnsFeed(source, strategy, prepare)


def _without_distributed_sampler(loader: DataLoader[object], sampler: DistributedSampler[object]) -> DataLoader[object]:
    if sampler.shuffle or type(sampler) is not DistributedSampler or loader.batch_size is None:
        raise UsageError(
            f"the outputs of predict are in the order of the data, but a {type(sampler).__name__} that shuffles "
            "or divides in its own way does not keep that order: give predict the DataLoader without it."
        )
    options = {name: getattr(loader, name) for name in _KEPT_OPTIONS}
    return DataLoader(loader.dataset, loader.batch_size, drop_last=loader.drop_last, **options)


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


class Order:
    """The order that a loader's sampler gives an epoch: the same in every process."""

    def __init__(self, loader: DataLoader[object], by_batches: bool, strategy: SingleDevice, seed: int) -> None:
        self.loader, self.strategy, self.seed = loader, strategy, seed
        self.source: Any = loader.batch_sampler if by_batches else loader.sampler
        if not isinstance(self.source, Sized):
            raise UsageError(
                f"this {type(self.source).__name__} has no length, so that processes cannot divide what it gives: "
                "define its __len__."
            )

    def __len__(self) -> int:
        return len(self.source)

    def draw(self, number: int) -> list[Any]:
        """The indices, or lists of indices, of epoch `number`. Every process takes part."""
        source = self.source
        tell_epoch(self.loader, number)
        if type(source) is SequentialSampler:
            return list(range(len(source)))
        if type(source) is RandomSampler and _is_plain_shuffle(source):
            return list(epoch_order(len(source), self.seed, number).tolist())
        before = random_state()
        restore_random_state(self.strategy.broadcast(before))
        drawn = [list(map(int, one)) if isinstance(one, Iterable) else int(one) for one in source]
        if self.strategy.rank:
            restore_random_state(before)
        if len(set(self.strategy.gather(zlib.crc32(repr(drawn).encode())))) > 1:
            raise UsageError(
                f"this {type(source).__name__} gives each process different rows, so some would be seen twice or "
                "never: let it draw the same in every process (generators with equal seeds), or divide the rows by a "
                "DistributedSampler."
            )
        return drawn


def _is_plain_shuffle(sampler: RandomSampler) -> bool:
    """Whether it yields every row once, in an order for which the program gave no generator."""
    whole = sampler.num_samples == len(sampler.data_source)
    return whole and not sampler.replacement and sampler.generator is None


class _Chosen:
    """A sampler that yields what was chosen for the epoch."""

    def __init__(self) -> None:
        self.indices: list[object] = []

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices)


class RowsFeed(Feed):
    """A DataLoader over an indexable data set; each process reads its own rows of each batch."""

    def __init__(self, loader: DataLoader[object], strategy: SingleDevice, seed: int, prepare: Prepare) -> None:
        self.given, self.strategy, self.prepare = loader, strategy, prepare
        self.order = Order(loader, False, strategy, seed)
        self.chosen = _Chosen()
        options = {name: getattr(loader, name) for name in _KEPT_OPTIONS}
        self.loader: DataLoader[object] = DataLoader(loader.dataset, batch_sampler=self.chosen, **options)
        self.steps = len(self._plan(len(self.order), 0))

    def generators(self) -> list[torch.Generator]:
        return generators_of(self.given)

    def _plan(self, rows: int, skip: int) -> list[Share]:
        return shares(rows, self.given.batch_size or 1, self.strategy, self.given.drop_last, skip)

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        order = self.order.draw(number)
        plan = self._plan(len(order), samples)
        self.skipped = (self.steps or 0) - len(plan)
        self.chosen.indices = [order[share.start : share.start + share.rows] for share in plan]
        source = iter(self.loader)
        placed = map(self.prepare, source) if self.prepare else self.on_device(source, self.strategy.device)
        return ((batch, share.size, share.total) for batch, share in zip(placed, plan, strict=True))


class TurnsFeed(LoaderFeed):
    """Batches that every process reads and that they take in turn: process 0 the first, process 1 the second, ...

    A step is as many batches as there are processes. If fewer are left, the other processes borrow the last one with a
    weight of 0.
    """

    def __init__(self, loader: Iterable[object], strategy: SingleDevice, prepare: Prepare) -> None:
        super().__init__(loader, strategy, prepare)
        self.steps = None if self.steps is None else -(-self.steps // strategy.world_size)

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        tell_epoch(self.loader, number)
        source = self._after(begun(self.loader), samples)
        self.skipped //= self.strategy.world_size
        return self.placed(self._turns(source))

    def _turns(self, source: Iterator[object]) -> Iterator[Item]:
        rank, world = self.strategy.rank, self.strategy.world_size
        while True:
            sizes: list[int] = []
            prints: list[int] = []
            mine: object = None
            for batch in islice(source, world):
                if len(sizes) <= rank:
                    mine = wt.map_tensors(torch.clone, batch)  # the loader may use its memory again
                sizes.append(batch_size_of(batch))
                prints.append(fingerprint(batch))
            _require_the_same(self.strategy, hash(tuple(prints)), f"batches from this {type(self.loader).__name__}")
            if not sizes:
                return
            yield mine, sizes[rank] if rank < len(sizes) else 0, sum(sizes)


class BatchesFeed(LoaderFeed):
    """A DataLoader whose data set or batch sampler makes the batches: taken in turn, each read by one process only."""

    def __init__(self, loader: DataLoader[object], strategy: SingleDevice, seed: int, prepare: Prepare) -> None:
        super().__init__(loader, strategy, prepare)
        self.by_batches = loader.batch_sampler is not None
        self.order = Order(loader, self.by_batches, strategy, seed)
        self.steps = -(-len(self.order) // strategy.world_size)
        self.chosen: Any = _Chosen()
        options = {name: getattr(loader, name) for name in _KEPT_OPTIONS}
        options |= {"batch_sampler": self.chosen} if self.by_batches else {"batch_size": None, "sampler": self.chosen}
        self.divided: DataLoader[Any] = DataLoader(loader.dataset, **options)
        collate: Callable[[Any], Any] = loader.collate_fn
        self._read: Callable[[Any], Any] = lambda index: collate(loader.dataset[index])

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        rank, world = self.strategy.rank, self.strategy.world_size
        order = self._after_rows(self.order.draw(number), samples)
        self.skipped //= world
        groups = [order[begin : begin + world] for begin in range(0, len(order), world)]
        self.chosen.indices = [group[rank] if rank < len(group) else group[0] for group in groups]
        return self.placed(self._counted(zip(groups, iter(self.divided), strict=True)))

    def _after_rows(self, order: list[Any], rows: int) -> list[Any]:
        """The batches of an epoch without its first `rows` rows. Batches of unknown size are read to be counted."""
        self.skipped, seen = 0, 0
        while seen < rows and self.skipped < len(order):
            batch = order[self.skipped]
            size = len(batch) if self.by_batches else batch_size_of(self._read(batch))
            if seen + size > rows:
                if not self.by_batches:
                    raise UsageError(
                        "the checkpoint ends in the middle of a batch that the data set makes: give fit the data that "
                        "it was trained with, or go on from the end of an epoch."
                    )
                return [batch[rows - seen :], *order[self.skipped + 1 :]]
            seen += size
            self.skipped += 1
        return order[self.skipped :]

    def _counted(self, taken: Iterator[tuple[list[Any], Any]]) -> Iterator[Item]:
        rank = self.strategy.rank
        for group, batch in taken:
            if self.by_batches:
                sizes = [len(indices) for indices in group]
            else:
                sizes = self.strategy.gather(batch_size_of(batch))[: len(group)]
            yield batch, sizes[rank] if rank < len(sizes) else 0, sum(sizes)


def fingerprint(batch: object) -> int:
    """A number that is equal for equal batches; large tensors are sampled."""
    if isinstance(batch, torch.Tensor):
        if batch.layout is not torch.strided:
            return hash(tuple(batch.shape))
        flat = batch.detach().resolve_conj().resolve_neg().reshape(-1)
        sample = flat[:: -(-flat.numel() // SAMPLED)] if flat.numel() > SAMPLED else flat
        content = sample.cpu().contiguous().view(torch.uint8).numpy().tobytes() if sample.numel() else b""
        return zlib.crc32(content + repr((tuple(batch.shape), batch.dtype)).encode())
    if isinstance(batch, PackedSequence):
        return hash(tuple(map(fingerprint, batch)))
    parts = None if isinstance(batch, set | frozenset) else children_of(batch)  # each process has an order of its own
    if parts is not None:
        return hash(tuple(map(fingerprint, parts.values)))
    return zlib.crc32(repr(batch).encode()) if isinstance(batch, str | bytes | int | float | bool) else 0


def _fingerprint_of_data(data: object) -> int:
    """The fingerprint of a data set's length and, if accessible, its tensors or its selection of rows."""
    length = len(data) if isinstance(data, Sized) else 0
    if isinstance(data, Subset):
        return hash((length, zlib.crc32(repr(list(data.indices)).encode()), _fingerprint_of_data(data.dataset)))
    return hash((length, fingerprint(data.tensors))) if isinstance(data, TensorDataset) else hash(length)


def _require_the_same(strategy: SingleDevice, number: int, what: str) -> None:
    if len(set(strategy.gather(number))) > 1:
        raise UsageError(
            f"the processes were given different {what}: give all of them the same, shuffled by the same seed, and the "
            "Trainer divides them; or divide the rows yourself by a DistributedSampler in a DataLoader."
        )
