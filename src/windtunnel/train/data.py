"""Turns the data given to `fit` into batches on the device: loaders, tensors kept on the device, shares of a batch.

A feed yields (batch, size, total): the samples of this process in the batch, and those of all processes together.
A process without samples gets a borrowed batch of size 0, so that every process takes every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.nested import are_names, children_of
from windtunnel.train.prefetch import Prefetcher
from windtunnel.train.strategies import SingleDevice

Item = tuple[object, int, int]
GATHERED_BYTES = 64 << 20  # rows are gathered in the epoch's order for so many bytes at a time


class Share(NamedTuple):
    """Rows `start` to `start + size` of the epoch's order are this process's part of a batch of `total` rows."""

    start: int
    size: int
    total: int

    @property
    def rows(self) -> int:
        """Rows to read: at least one, and two if there are two (batch norm needs two), even if size is 0."""
        return self.size or min(self.total, 2)


def shares(rows: int, batch_size: int, strategy: SingleDevice, drop_last: bool = False, skip: int = 0) -> list[Share]:
    """The shares of rank `strategy.rank` in batches of `batch_size` per process; ranks' sizes differ by at most one."""
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
    """A permutation of 0..rows-1 that depends on its arguments alone: the same on every device, rank and resume."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(rows, generator=generator)


def batch_size_of(batch: object) -> int:
    """The length of the first dimension of a batch's first tensor; for a PackedSequence, its number of sequences."""
    first = batch
    while not isinstance(first, torch.Tensor):
        if isinstance(first, PackedSequence):
            return int(first.batch_sizes[0])
        if isinstance(first, Mapping) and first:
            first = next(iter(first.values()))
        elif isinstance(first, list | tuple) and first:
            first = first[0]
        elif first is batch or next(wt.tensors_in(first), None) is not None:
            return _first_size(wt.tensors_in(first))
        else:  # a name or a number stands first: look at all
            return _first_size(wt.tensors_in(batch))
    return first.shape[0] if first.dim() else 1


def _first_size(tensors: Iterator[torch.Tensor]) -> int:
    first = next(tensors, None)
    if first is None:
        raise UsageError("a batch without any tensor cannot be trained on: let the loader give tensors.")
    return first.shape[0] if first.dim() else 1


class Tensors:
    """Data that fits in memory: tensors of equal length, cut into batches by the Trainer on the device itself.

    `Tensors(X, y, batch_size=128)` trains on batches (X[i], y[i]); a single dict of tensors gives dicts. They are
    copied to the device once, if that leaves half of its free memory, and reshuffled there for every epoch.
    """

    def __init__(self, *tensors: Any, batch_size: int = 32, shuffle: bool = True, drop_last: bool = False) -> None:
        self.keys = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], Mapping) else None
        self.tensors: tuple[torch.Tensor, ...] = tuple(tensors[0].values()) if self.keys is not None else tensors
        lengths = {len(tensor) for tensor in self.tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise UsageError(f"tensors of one data set have equal lengths of at least 1, and these have {lengths}.")
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} makes no batch: it must be a number of samples, at least 1.")
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def batch(self, parts: tuple[torch.Tensor, ...]) -> object:
        return dict(zip(self.keys, parts, strict=True)) if self.keys is not None else parts


class Feed:
    """Epochs of items. `steps` is their number in an epoch, None if unknown; `recipe` describes the data."""

    steps: int | None = None
    recipe: Mapping[str, Any] = MappingProxyType({})
    skipped = 0
    prefetcher: Prefetcher | None = None

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        """The items of epoch `number` after its first `samples` rows, counted over all processes.

        `skipped` is then the number of items with those rows.
        """
        raise NotImplementedError

    def generators(self) -> list[torch.Generator]:
        """The loader's own random generators, whose state at the start of an epoch determines its order."""
        return []

    def read_ahead(self, ahead: bool) -> None:
        """Whether a batch may be read from the loader before it is needed."""
        if self.prefetcher is not None:
            self.prefetcher.ahead = ahead

    def on_device(self, batches: Iterable[object], device: torch.device) -> Iterable[object]:
        if device.type != "cuda":
            return batches
        ahead = self.prefetcher.ahead if self.prefetcher is not None else True
        self.prefetcher = Prefetcher(batches, device)
        self.prefetcher.ahead = ahead
        return self.prefetcher


class LoaderFeed(Feed):
    """The batches of any iterable; each is one whole step of this process."""

    def __init__(
        self, loader: Iterable[object], strategy: SingleDevice, prepare: Callable[[object], object] | None
    ) -> None:
        self.loader, self.strategy, self.prepare = loader, strategy, prepare
        self.steps = len(loader) if isinstance(loader, Sized) and not is_stream(loader) else None

    def generators(self) -> list[torch.Generator]:
        return generators_of(self.loader)

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        tell_epoch(self.loader, number)
        source = self._after(begun(self.loader), samples // self.strategy.world_size)
        return self.placed(self._counted(source))

    def _after(self, source: Iterator[Any], rows: int) -> Iterator[Any]:
        """The batches of `source` without their first `rows` rows, which are read and discarded."""
        self.skipped, seen = 0, 0
        while seen < rows:
            batch = next(source, _NONE_LEFT)
            if batch is _NONE_LEFT:
                break
            size = batch_size_of(batch)
            if seen + size > rows:
                return chain([rest_of(batch, rows - seen, size)], source)
            seen += size
            self.skipped += 1
        return source

    def _counted(self, source: Iterator[Any]) -> Iterator[Item]:
        strategy = self.strategy
        for batch in source:
            size = batch_size_of(batch)
            if strategy.splits_batches:
                require_divisible(batch, size)
            yield batch, size, size * strategy.world_size

    def placed(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items, with their batches on the device."""
        counts: list[tuple[int, int]] = []

        def batches() -> Iterator[object]:
            for batch, size, total in items:
                counts.append((size, total))
                yield batch

        placed = map(self.prepare, batches()) if self.prepare else self.on_device(batches(), self.strategy.device)
        return ((batch, *counts.pop(0)) for batch in placed)


_NONE_LEFT = object()


def rest_of(batch: Any, rows: int, size: int) -> Any:
    """A batch of `size` rows without its first `rows`. Raises UsageError if it cannot be cut."""

    def rest(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() and tensor.shape[0] != size:
            raise _uncut(f"this batch of {size} rows holds a tensor of shape {tuple(tensor.shape)}")
        return tensor[rows:] if tensor.dim() else tensor

    if _holds_packed(batch):
        raise _uncut("this one holds packed sequences")
    return wt.map_tensors(rest, batch, names=lambda names: names[rows:] if len(names) == size else names)


def _holds_packed(batch: object) -> bool:
    children = children_of(batch)
    return isinstance(batch, PackedSequence) or any(map(_holds_packed, children.values if children else ()))


def _uncut(why: str) -> UsageError:
    return UsageError(
        f"the checkpoint ends in the middle of a batch, which cannot be cut there, as {why}: give fit the batch size "
        "that it was trained with, or go on from the end of an epoch."
    )


def require_divisible(batch: object, size: int) -> None:
    """Raise UsageError if DataParallel would give its replicas parts of a batch that do not belong together."""
    if isinstance(batch, torch.Tensor):
        if batch.dim() and batch.shape[0] != size:
            raise UsageError(
                f"DataParallel cuts every tensor of a batch into parts, and this batch of {size} rows holds one of "
                f"shape {tuple(batch.shape)}: keep it out of the batch, or take the strategy 'ddp'."
            )
        return
    if are_names(batch):
        return
    if isinstance(batch, list | tuple) and len(batch) == size > 1 and next(wt.tensors_in(batch), None) is None:
        raise UsageError(
            f"DataParallel gives every replica the whole of a {type(batch).__name__}, and this batch of {size} rows "
            f"holds one of as many {type(batch[0]).__name__}: keep it out of the batch, or take the strategy 'ddp'."
        )
    parts = None if isinstance(batch, PackedSequence) else children_of(batch)
    if parts is None and next(wt.tensors_in(batch), None) is not None:
        raise UsageError(
            f"DataParallel does not divide a {type(batch).__name__}: let the loader give tuples, lists, dicts or "
            "dataclasses, or take the strategy 'ddp'."
        )
    for part in parts.values if parts is not None else ():
        require_divisible(part, size)


def begun(loader: Iterable[object]) -> Iterator[object]:
    """The loader's batches from the first on. Raises UsageError if it is an exhausted iterator."""
    source = iter(gathering(loader))
    if source is not loader:
        return source
    first = list(islice(source, 1))
    if not first:
        raise UsageError(
            f"this {type(loader).__name__} has no batch left: an iterator gives each batch once, so give a list, a "
            "DataLoader, or an object whose __iter__ begins anew in each epoch."
        )
    return chain(first, source)


def parts_of(loader: object) -> list[object]:
    """The loader and whatever may order its data (samplers, the data set), each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    places = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    places.append(getattr(loader, "dataset", None))
    return list({id(place): place for place in places if place is not None}.values())


def generators_of(loader: object) -> list[torch.Generator]:
    found = [getattr(place, "generator", None) for place in parts_of(loader)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def generators_of_feeds(*feeds: Feed | None) -> list[torch.Generator]:
    """The generators of several feeds, each once."""
    found = [one for feed in feeds if feed is not None for one in feed.generators()]
    return list({id(one): one for one in found}.values())


def begin_workers(*feeds: Feed | None) -> None:
    """Let loaders whose workers persist have begun, as after their first epoch; the caller restores random generators.

    They draw a number when they begin, and none at the beginning of a later epoch.
    """
    for feed in feeds:
        for loader in (getattr(feed, "loader", None), getattr(feed, "divided", None)):
            if isinstance(loader, DataLoader) and loader.persistent_workers:
                iter(loader)


def generator_states(generators: list[torch.Generator]) -> list[torch.Tensor]:
    return [generator.get_state() for generator in generators]


def tell_epoch(loader: object, number: int) -> None:
    """Call `set_epoch` on whatever orders the data by epoch, such as DistributedSampler."""
    for place in parts_of(loader):
        set_epoch = getattr(place, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number)


class TensorFeed(Feed):
    """Tensors on the device: each epoch gathers rows in its order, a few megabytes at a time, and slices the result."""

    def __init__(
        self,
        data: Tensors,
        strategy: SingleDevice,
        seed: int,
        prepare: Callable[[object], object] | None,
        shuffle: bool = True,
    ) -> None:
        self.data, self.strategy, self.seed, self.prepare = data, strategy, seed, prepare
        self.shuffled = data.shuffle and shuffle
        self.plan = shares(len(data), data.batch_size, strategy, data.drop_last)
        self.steps = len(self.plan)
        device = strategy.device
        fits = device.type != "cuda" or 2 * data.size_bytes <= wt.memory(device).free_bytes
        self.resident = fits and prepare is None
        self.tensors = tuple(wt.to(tensor, device) if self.resident else tensor for tensor in data.tensors)

    def epoch(self, number: int, samples: int = 0) -> Iterator[Item]:
        data = self.data
        plan = shares(len(data), data.batch_size, self.strategy, data.drop_last, samples) if samples else self.plan
        self.skipped = len(self.plan) - len(plan)
        if not plan:
            return iter(())
        same_batches = plan == self.plan[self.skipped :]
        read, skip = (self.plan, self.skipped) if same_batches else (plan, 0)
        order = epoch_order(len(data), self.seed, number) if self.shuffled else None
        if self.strategy.world_size > 1:
            order = torch.arange(len(data)) if order is None else order
            order = torch.cat([order[share.start : share.start + share.rows] for share in read])
        elif order is not None:
            order = order[read[0].start :]
        device = self.tensors[0].device
        if order is not None and device.type == "cuda":
            order = order.pin_memory().to(device, non_blocking=True)
        parts = self._batches(read, order, skip)
        if self.prepare is not None:
            placed: Iterable[object] = map(self.prepare, parts)
        else:
            placed = parts if self.resident else self.on_device(parts, self.strategy.device)
        return ((batch, share.size, share.total) for batch, share in zip(placed, plan, strict=True))

    def _batches(self, plan: list[Share], order: torch.Tensor | None, skip: int) -> Iterator[object]:
        """The batches of `plan` after the first `skip`.

        A batch is a view of the rows gathered with it. How it is aligned decides which vector instructions read it,
        and so the last bits of its sums: a resumed epoch gathers the same rows at once as an uninterrupted one.
        """
        row_bytes = max(1, self.data.size_bytes // len(self.data))
        at_once = max(1, GATHERED_BYTES // (row_bytes * plan[0].rows))
        first = skip // at_once * at_once
        begin = (plan[0].start if order is None else 0) + sum(share.rows for share in plan[:first])
        for i in range(first, len(plan), at_once):
            sizes = [share.rows for share in plan[i : i + at_once]]
            end = begin + sum(sizes)
            if order is None:
                rows = [tensor[begin:end] for tensor in self.tensors]
                if (
                    self.resident
                ):  # a model may write into its batch, which the user's data and later epochs must not see
                    rows = [block.clone() for block in rows]
            else:
                rows = [tensor.index_select(0, order[begin:end]) for tensor in self.tensors]
            batches = map(self.data.batch, zip(*(torch.split(block, sizes) for block in rows), strict=True))
            yield from islice(batches, max(0, skip - i), None)
            begin = end


def require_steps(feed: Feed) -> None:
    """Raise UsageError if an epoch is known to have no steps."""
    if feed.steps == 0:
        raise UsageError(
            "the training data gives no batch: there are no rows, or drop_last drops the only, incomplete batch."
        )


def require_batches(source: object) -> None:
    if not isinstance(source, Iterable):
        raise UsageError(f"batches cannot come from a {type(source).__name__}: give a DataLoader or tensors.")


class _Rows(Dataset[object]):
    """A TensorDataset that returns the rows of a whole batch at once."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [tensor[index] for tensor in self.tensors]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        rows = torch.tensor(indices)
        if len(rows) and int(rows.min()) < 0:  # counted from the end
            rows = rows % len(self.tensors[0])
        return [tensor.index_select(0, rows) for tensor in self.tensors]


def _as_it_is(batch: object) -> object:
    return batch


def gathering(loader: Iterable[object]) -> Iterable[object]:
    """A loader with bit-identical batches that gathers rows instead of stacking single samples.

    That is possible for a plain TensorDataset read in this process; any other loader is returned as it is.
    """
    if not isinstance(loader, DataLoader) or type(loader.dataset) is not TensorDataset:
        return loader
    ordinary = loader.collate_fn is default_collate and loader.num_workers == 0 and not loader.pin_memory
    if not ordinary or loader.batch_sampler is None or type(loader) is not DataLoader:
        return loader
    if any(tensor.device.type != "cpu" for tensor in loader.dataset.tensors):
        return loader
    rows = _Rows(loader.dataset.tensors)
    return DataLoader(rows, batch_sampler=loader.batch_sampler, collate_fn=_as_it_is, generator=loader.generator)


def is_stream(loader: object) -> bool:
    return isinstance(getattr(loader, "dataset", None), IterableDataset)
