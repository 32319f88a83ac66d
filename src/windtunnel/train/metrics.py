"""Losses and metrics accumulated on the device and rarely read, so that the host never waits within an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.metric_objects import combines_processes, is_object, load_state, numbers, state_of


class _Block(NamedTuple):
    """Values on their way to the host, in one copy: names and weights in the order of the elements of `host`."""

    tag: int | None  # None where more belongs to it: it was wanted early, or the rest is of another kind
    names: list[str]
    weights: list[float]
    host: torch.Tensor
    arrived: torch.Event | None
    device_values: torch.Tensor

    def is_there(self) -> bool:
        return self.arrived is None or bool(self.arrived.query())


class Metrics:
    """Weighted means, over an epoch, of scalars on a device.

    `add` leaves a scalar on its device. After every `every` scalars, or at `flush`, one asynchronous copy brings them
    to the host. `read` gives the means of the newest block that has arrived and never waits; `compute` waits once and
    gives the means over everything. `functions` maps names to `f(outputs, target) -> scalar tensor`, or to objects with
    `update`, `compute` and `reset` (those of torchmetrics); `update` applies them to a batch.

    With several processes, torchmetrics' objects combine their states. Other objects cannot: with `gather`, a
    strategy's function that returns the values of all processes, they see all rows, at the price of one wait per batch.
    """

    def __init__(
        self,
        functions: Mapping[str, Any] | None = None,
        every: int = 50,
        gather: Callable[[object], list[Any]] | None = None,
    ) -> None:
        if every < 1:
            raise UsageError(f"Metrics(every={every}) would never read them: give a number of values, at least 1.")
        self.every = every
        self._functions: dict[str, Callable[..., torch.Tensor]] = {}
        self._objects: dict[str, Any] = {}
        for name, function in (functions or {}).items():
            (self._objects if is_object(function) else self._functions)[name] = function
        self._gather = gather
        self._device = wt.cpu()
        alone = [item for item in self._objects.values() if gather is None or combines_processes(item)]
        self._updated = alone
        self._shared = [item for item in self._objects.values() if not any(item is other for other in alone)]
        self.reset()

    def reset(self) -> None:
        """Forget everything; torchmetrics objects are reset as well."""
        self._names: list[str] = []
        self._values: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._blocks: deque[_Block] = deque()
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._recent: dict[str, float] = {}
        self._open_sums: dict[str, float] = {}  # of values that were counted before their block was full
        self._open_counts: dict[str, float] = {}
        self._added = 0
        for item in self._objects.values():
            item.reset()

    @property
    def wants_outputs(self) -> bool:
        """Whether `update` has anything to do."""
        return bool(self._functions or self._objects)

    @property
    def has_objects(self) -> bool:
        """Whether there are metric objects, which training and validation share."""
        return bool(self._objects)

    def to(self, device: torch.device) -> Metrics:
        """Move torchmetrics objects to `device`."""
        self._device = device
        for item in self._objects.values():
            if hasattr(item, "to"):
                item.to(device)
        return self

    def add(self, name: str, value: torch.Tensor | float, weight: float = 1) -> None:
        """Count `value`, a scalar, with `weight` (for a mean over a batch: its number of samples).

        A tensor is copied on its device, so it may change afterwards.
        """
        if not isinstance(value, torch.Tensor):
            _count(self._sums, self._counts, [name], [weight], [value])
            return
        self.keep(name, value.detach().clone(), weight)

    def keep(self, name: str, value: torch.Tensor, weight: float = 1) -> None:
        """`add` for a tensor that does not change afterwards, such as a loss: it is copied only if it may be a view."""
        if value.requires_grad:
            aliases = value.is_leaf or value._base is not None
            value = value.detach().clone() if aliases else value.detach()
        self._values.append(value)
        self._names.append(name)
        self._weights.append(weight)
        self._added += 1
        if len(self._values) >= self.every:
            self.flush()

    def update(self, outputs: object, target: object, weight: float) -> None:
        """Apply all functions and objects to a batch of `weight` samples; a batch of 0 is not counted.

        With `gather` every process calls it for every batch.
        """
        with torch.no_grad():
            if weight:
                for name, function in self._functions.items():
                    self.add(name, function(outputs, target), weight)
                for item in self._updated:
                    item.update(outputs, target)
            if self._gather is None or not self._shared:
                return
            mine = wt.to((_detached(outputs), _detached(target)), wt.cpu()) if weight else None
            for part in self._gather(mine):
                for item in self._shared if part is not None else ():
                    item.update(*wt.to(part, self._device))

    def flush(self, tag: int | None = None) -> None:
        """Send the scalars on devices to the host without waiting: one copy per device and dtype.

        `tag` identifies this block in `arrived`; by default it is the number of scalars so far.
        """
        self._flush(self._added if tag is None else tag)

    def _flush(self, tag: int | None) -> None:
        names, values, weights = self._names, self._values, self._weights
        self._names, self._values, self._weights = [], [], []
        places = [(value.get_device(), value.dtype) for value in values]  # numbers compare faster than devices
        if len(set(places)) == 1:
            self._send(names, values, weights, tag)
            return
        kinds = list(dict.fromkeys(places))
        for place in kinds:
            chosen = [i for i, its_place in enumerate(places) if its_place == place]
            its = ([names[i] for i in chosen], [values[i] for i in chosen], [weights[i] for i in chosen])
            self._send(*its, tag if place == kinds[-1] else None)

    def _send(self, names: list[str], values: list[torch.Tensor], weights: list[float], tag: int | None) -> None:
        device = values[0].device
        if any(value.dim() for value in values):
            values = [value.reshape(()) for value in values]
        stacked = torch.stack(values)
        host, arrived = stacked, None
        if device.type == "cuda":
            host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            arrived = wt.recorded_event(device)
        self._blocks.append(_Block(tag, names, weights, host, arrived, stacked))

    def read(self) -> dict[str, float]:
        """The means of the newest block that has arrived on the host ({} before the first). Never waits."""
        self.arrived()
        return self._recent

    def arrived(self) -> list[tuple[int, dict[str, float]]]:
        """(tag, means) of each block that has arrived since the last call. Never waits."""
        found = []
        while self._blocks and self._blocks[0].is_there():
            found += self._take(self._blocks.popleft())
        return found

    def _take(self, block: _Block) -> list[tuple[int, dict[str, float]]]:
        """Count a block; returns its tag and means if it is complete."""
        values = block.host.tolist()
        for sums, counts in ((self._sums, self._counts), (self._open_sums, self._open_counts)):
            _count(sums, counts, block.names, block.weights, values)
        if block.tag is None:
            return []
        sums, counts = self._open_sums, self._open_counts
        self._recent = {name: total / counts[name] for name, total in sums.items()}
        sums.clear()
        counts.clear()
        return [(block.tag, self._recent)]

    def drain(self) -> list[tuple[int, dict[str, float]]]:
        """Wait for everything added: (tag, means) of each block flushed so far, as from `arrived`."""
        self._flush(None)
        found = []
        while self._blocks:
            block = self._blocks.popleft()
            if block.arrived is not None and not block.is_there():
                block.arrived.synchronize()
            found += self._take(block)
        return found

    def compute(self, reduce: Callable[[dict[str, float]], dict[str, float]] | None = None) -> dict[str, float]:
        """The weighted means over everything since `reset`, after one wait.

        `reduce` sums a dict of numbers over all processes (a strategy's `sum_over_ranks`).
        """
        self.drain()
        sums, counts = self._sums, self._counts
        if reduce is not None:
            totals = {f"sum {name}": value for name, value in sums.items()}
            totals = reduce(totals | {f"count {name}": value for name, value in counts.items()})
            sums, counts = (
                {key.removeprefix(part): value for key, value in totals.items() if key.startswith(part)}
                for part in ("sum ", "count ")
            )
        means = {name: value / counts[name] for name, value in sums.items()}
        for name, item in self._objects.items():
            means |= numbers(name, item.compute())
        return means

    def state_dict(self) -> dict[str, object]:
        """Everything counted so far, after a wait; objects with their tensors."""
        self.drain()
        objects = {name: state_of(item) for name, item in self._objects.items()}
        counted = {"sums": self._sums, "counts": self._counts}
        counted |= {"open_sums": self._open_sums, "open_counts": self._open_counts}
        return {name: dict(numbers) for name, numbers in counted.items()} | {"objects": objects}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._open_sums, self._open_counts = dict(state.get("open_sums", {})), dict(state.get("open_counts", {}))
        for name, kept in state["objects"].items():
            if name in self._objects:
                load_state(name, self._objects[name], kept, self._device)


def _count(
    sums: dict[str, float], counts: dict[str, float], names: list[str], weights: list[float], values: list[float]
) -> None:
    for name, weight, value in zip(names, weights, values, strict=True):
        if weight:
            sums[name] = sums.get(name, 0.0) + value * weight
            counts[name] = counts.get(name, 0.0) + weight


def _detached(nested: object) -> object:
    return wt.map_tensors(torch.Tensor.detach, nested)


def state_of_rank(states: list[dict[str, Any]], rank: int, processes: int) -> dict[str, object]:
    """The state from which process `rank` of `processes` resumes, given those of the processes that saved.

    If the number of processes has changed, rank 0 takes over the counts of all. Raises UsageError if objects would have
    to be merged, which only their own code can do.
    """
    if len(states) == processes:
        return states[rank]
    merged: dict[str, Any] = {"sums": {}, "counts": {}, "open_sums": {}, "open_counts": {}, "objects": {}}
    for state in states if rank == 0 else ():
        for part in ("sums", "counts", "open_sums", "open_counts"):
            for name, value in state.get(part, {}).items():
                merged[part][name] = merged[part].get(name, 0.0) + value
    for name, kept in states[0]["objects"].items():
        combines = kept.get("combines", False)
        if combines and len(states) > 1:
            raise UsageError(
                f"in the middle of an epoch the metric {name!r} of {len(states)} processes cannot go on in "
                f"{processes}: go on from the checkpoint of an epoch's end, or with as many processes."
            )
        if rank == 0 or not combines:
            merged["objects"][name] = kept
    return merged
