"""How fast is the way between host and GPU, and can it be hidden?

The documents warn that transfers between devices are slow, much slower than computing, and that they block: "we have
to wait for the data to be sent, before we can proceed with more operations", which they compare with ordering coffee
in a queue, behind everybody else, instead of by phone while doing other things. PyTorch's notes add the two words
that are the telephone: pinned memory and `non_blocking=True`.

The first table measures the way itself. Small copies take the latency whatever their size; large ones the bandwidth.
The driver copies pageable memory through a buffer of its own, pinned memory goes straight. A fair comparison with
computing is the last column but one: the product of two square matrices that hold as many bytes.

The second table feeds batches to a GPU that computes on each: standing in the queue (blocking copies), by phone
(pinned and non_blocking, one after the other on one stream), and with the next batch on its way on a stream of its
own while the GPU works on this one. The host is free when its last call has returned. The timelines show both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Bar, Column, Fact, Plot, Result, Series, Table, Timeline, Value

GPUS = 1
VALUES = False
FLOAT_BYTES = 4
SHOWN = 4  # batches in a timeline


@dataclass(frozen=True)
class TransferSizes:
    """The sizes of the copies in bytes; how many batches of `batch` x `width` numbers meet `layers` products."""

    sizes: tuple[int, ...] = tuple(1 << power for power in range(10, 29, 2))
    batches: int = 20
    batch: int = 2048
    width: int = 2048
    layers: int = 4
    repeats: int = 5


SIZES = TransferSizes()
SMALL = TransferSizes(sizes=(1 << 10, 1 << 16, 1 << 22), batches=5, batch=1024, width=1024, repeats=2)


class CopyTime(NamedTuple):
    """Copies of one size, in seconds; None between two GPUs where there is one."""

    size_bytes: int
    pageable_s: float
    pinned_s: float
    issue_s: float
    back_s: float
    back_pinned_s: float
    peer_s: float | None
    product_s: float


class Feed(NamedTuple):
    """One way to feed the batches: when the host was free, when all was done, and who was busy when."""

    way: str
    host_s: float
    total_s: float
    bars: tuple[Bar, ...]


def run(sizes: TransferSizes, cpu: None) -> Result:
    """All copies and all ways to feed, on the first GPU (and between the first two)."""
    rows = [_row(size, sizes.repeats) for size in sizes.sizes]
    feeds = [_feed(sizes, way) for way in FEEDS]
    facts, conclusion = _conclude(rows, feeds)
    return Result(
        name="transfer",
        devices=_measure.devices(),
        tables=(_table(rows), _feed_table(sizes, feeds)),
        plots=(_plot(rows), *(Timeline(f"Feeding: {feed.way}", feed.bars) for feed in (feeds[0], feeds[-1]))),
        facts=facts,
        conclusion=conclusion,
    )


def _row(size_bytes: int, repeats: int) -> CopyTime:
    gpu = wt.gpu(0)
    numbers = max(1, size_bytes // FLOAT_BYTES)
    pageable = torch.ones(numbers)
    pinned = torch.ones(numbers).pin_memory()
    there = torch.ones(numbers, device=gpu)
    landing = torch.ones(numbers).pin_memory()
    elsewhere = torch.ones(numbers, device=wt.gpu(1)) if wt.num_gpus() > 1 else None
    side = max(1, round(numbers**0.5))
    matrix = torch.ones(side, side, device=gpu)

    def seconds(work: Callable[[], object]) -> float:
        return _measure.wall_s(work, repeats=repeats)

    return CopyTime(
        size_bytes,
        seconds(lambda: there.copy_(pageable)),
        seconds(lambda: there.copy_(pinned)),
        _issue_s(lambda: there.copy_(pinned, non_blocking=True), repeats),
        seconds(lambda: pageable.copy_(there)),
        seconds(lambda: landing.copy_(there)),
        None if elsewhere is None else seconds(lambda: elsewhere.copy_(there)),
        seconds(lambda: matrix @ matrix),
    )


def _issue_s(work: Callable[[], object], repeats: int) -> float:
    """The median time until `work` has returned to the host, with an idle GPU each time."""
    times = []
    for _ in range(repeats + 1):
        wt.synchronize()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    wt.synchronize()
    return sorted(times[1:])[repeats // 2]


# ---------------------------------------------------------------------- feeding a GPU


class Diary:
    """Who was busy when, in seconds since `begin`: the host by its clock, the GPU by events."""

    def __init__(self, device: torch.device) -> None:
        wt.synchronize()
        self.device = device
        self.begin_s = time.perf_counter()
        self.begin = wt.recorded_event(device, timing=True)
        self.host: list[Bar] = []
        self._events: list[tuple[str, str, torch.Event, torch.Event]] = []

    def call(self, name: str, lane: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Call `work`, which queues something on the current stream, and note it on the host's lane and on `lane`."""
        started = time.perf_counter() - self.begin_s
        first = wt.recorded_event(self.device, timing=True)
        result = work()
        self._events.append((lane, name, first, wt.recorded_event(self.device, timing=True)))
        self.host.append(Bar("host", name, started, time.perf_counter() - self.begin_s))
        return result

    def bars(self) -> tuple[Bar, ...]:
        """All that was noted, once the GPU is done."""
        wt.synchronize()
        found = [
            Bar(lane, name, self.begin.elapsed_time(first) / 1e3, self.begin.elapsed_time(last) / 1e3)
            for lane, name, first, last in self._events
        ]
        return (*self.host, *found)


class Batches:
    """Batches on the host, buffers and weights on the GPU."""

    def __init__(self, sizes: TransferSizes, count: int, pinned: bool) -> None:
        self.gpu = wt.gpu(0)
        batch = torch.ones(sizes.batch, sizes.width)
        self.host = [batch.pin_memory() if pinned else batch] * count
        self.weights = [torch.ones(sizes.width, sizes.width, device=self.gpu) for _ in range(sizes.layers)]
        self.pinned = pinned

    def copy(self, number: int) -> torch.Tensor:
        """A batch on its way to the GPU, on the current stream."""
        return self.host[number].to(self.gpu, non_blocking=self.pinned)

    def compute(self, batch: torch.Tensor) -> torch.Tensor:
        """What the GPU does with a batch."""
        for weight in self.weights:
            batch = batch @ weight
        return batch


Note = Callable[[str, str, Callable[[], torch.Tensor]], torch.Tensor]


def one_after_the_other(batches: Batches, note: Note) -> None:
    """Copy a batch, compute on it, copy the next."""
    for number in range(len(batches.host)):
        batch = note("copy", "GPU, copies", lambda number=number: batches.copy(number))  # type: ignore[misc]
        note("compute", "GPU, products", lambda batch=batch: batches.compute(batch))  # type: ignore[misc]


def next_one_ahead(batches: Batches, note: Note) -> None:
    """Copy the next batch on a stream of its own while the GPU computes on this one."""
    side = wt.stream(batches.gpu)

    def fetch(number: int) -> torch.Tensor:
        with side:
            batch: torch.Tensor = note("copy", "GPU, copies", lambda: batches.copy(number))
        return batch

    ahead = fetch(0)
    for number in range(len(batches.host)):
        side.join(ahead)
        batch = ahead
        if number + 1 < len(batches.host):
            ahead = fetch(number + 1)
        note("compute", "GPU, products", lambda batch=batch: batches.compute(batch))  # type: ignore[misc]


FEEDS: dict[str, tuple[bool, Callable[[Batches, Note], None]]] = {
    "blocking, in the queue": (False, one_after_the_other),
    "non_blocking, by phone": (True, one_after_the_other),
    "non_blocking, the next batch ahead": (True, next_one_ahead),
}


def _feed(sizes: TransferSizes, way: str) -> Feed:
    pinned, feed = FEEDS[way]
    batches = Batches(sizes, sizes.batches, pinned)

    def plain(name: str, lane: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        return work()

    feed(batches, plain)
    wt.synchronize()
    begin = time.perf_counter()
    feed(batches, plain)
    free = time.perf_counter()
    wt.synchronize()
    done = time.perf_counter()
    few = Batches(sizes, min(SHOWN, sizes.batches), pinned)
    diary = Diary(wt.gpu(0))
    feed(few, diary.call)
    return Feed(way, free - begin, done - begin, diary.bars())


# ---------------------------------------------------------------------- what it shows


def _table(rows: list[CopyTime]) -> Table:
    columns = (
        Column("size", "B"),
        Column("to the GPU, pageable", "s", ("gpu",)),
        Column("to the GPU, pinned", "s", ("gpu",)),
        Column("the same, host is free after", "s", ("gpu",)),
        Column("to the host, pageable", "s", ("gpu",)),
        Column("to the host, pinned", "s", ("gpu",)),
        Column("to another GPU", "s", ("gpu",)),
        Column("a product of that size", "s", ("gpu",)),
        Column("pinned bandwidth", "B/s", ("gpu",)),
    )
    cells: tuple[tuple[Value, ...], ...] = tuple((*row, row.size_bytes / row.pinned_s) for row in rows)
    return Table("Copies between host and GPU", columns, cells)


def _feed_table(sizes: TransferSizes, feeds: list[Feed]) -> Table:
    columns = (
        Column("way"),
        Column("host is free after", "s", ("gpu",)),
        Column("all is done after", "s", ("gpu",)),
        Column("faster than blocking", "times", ("gpu",)),
    )
    rows = tuple((feed.way, feed.host_s, feed.total_s, feeds[0].total_s / feed.total_s) for feed in feeds)
    return Table(f"Feeding {sizes.batches} batches of {sizes.batch:,} x {sizes.width:,} numbers", columns, rows)


def _plot(rows: list[CopyTime]) -> Plot:
    xs = tuple(float(row.size_bytes) for row in rows)
    lines: tuple[tuple[str, str, list[float] | list[float | None]], ...] = (
        ("to the GPU", "pageable", [row.pageable_s for row in rows]),
        ("to the GPU", "pinned", [row.pinned_s for row in rows]),
        ("to the host", "pageable", [row.back_s for row in rows]),
        ("to the host", "pinned", [row.back_pinned_s for row in rows]),
        ("to another GPU", "", [row.peer_s for row in rows]),
    )
    series = tuple(
        Series(
            f"{way}, {memory}" if memory else way,
            xs,
            tuple(None if t is None else x / t for x, t in zip(xs, times, strict=True)),
            ("gpu",),
            group=memory,
            dashed=way == "to the host",  # both directions are often equally fast, and their lines coincide
        )
        for way, memory, times in lines
        if times[0] is not None
    )
    return Plot("Bandwidth of a copy", Axis("size", "B", log=True), Axis("bandwidth", "B/s", log=True), series)


def _conclude(rows: list[CopyTime], feeds: list[Feed]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    small, large = rows[0], rows[-1]
    slower = [row for row in rows if row.pageable_s > row.product_s]
    blocking, phone, ahead = feeds
    facts = {
        "smallest": Fact(small.size_bytes, "B"),
        "largest": Fact(large.size_bytes, "B"),
        "latency": Fact(small.pinned_s, "s"),
        "pageable": Fact(large.size_bytes / large.pageable_s, "B/s"),
        "pinned": Fact(large.size_bytes / large.pinned_s, "B/s"),
        "slower_upto": Fact(slower[-1].size_bytes if slower else None, "B"),
        "phone": Fact(phone.host_s / phone.total_s, "share"),
        "queue": Fact(blocking.host_s / blocking.total_s, "share"),
        "speedup_phone": Fact(blocking.total_s / phone.total_s, "times"),
        "speedup_ahead": Fact(blocking.total_s / ahead.total_s, "times"),
    }
    first = (
        "A copy of {smallest} takes {latency}; one of {largest} runs at {pageable} from pageable memory and {pinned} "
    )
    first += "from pinned"
    if slower:
        first += "; at {slower_upto} the copy from pageable memory still takes longer than a product of that size."
    else:
        first += ", and a product of that size takes longer at every size."
    second = (
        "Blocking copies hold the host for {queue} of the time, non_blocking ones for {phone}; by phone the batches "
    )
    second += "are done {speedup_phone} as fast, and {speedup_ahead} with the next one ahead."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
