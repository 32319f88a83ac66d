"""What does PyTorch's caching allocator save, what does empty_cache give back, and what cures fragmentation?

Asking the driver for memory is slow, and giving it back waits for the GPU. So PyTorch keeps what tensors leave behind
and hands it out again. Three questions follow.

What does that save? A tensor is filled with zeros and dropped, again and again: from the cache, and with
`torch.cuda.empty_cache()` after each.

What does `empty_cache()` give back? Memory that no tensor uses, and that alone. It makes room for other programs and
none for this one, which would have been served from the cache.

What does the cache cost? Blocks that fit nothing that is asked for: fragmentation. Two classic cases are run. Batches
of growing length are each a little too large for what the one before left behind. Tensors that stay, made between large
ones that go, each take a piece of what a large one left. Each case is tried with settings that change what the
allocator does, and what it reserves at the peak is compared with what tensors hold at the peak. Settings are changed
with the function that PyTorch has for a running program; a program of yours sets `PYTORCH_CUDA_ALLOC_CONF` before it
starts.

On emulated GPUs the sizes are exact, and the driver's times are an assumption.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value

GPUS = 1
VALUES = False
MIB = 2**20
DEFAULTS = "expandable_segments:False"  # the other settings start from their defaults each time
SETTINGS = ("", "roundup_power2_divisions:4", "max_split_size_mb:128", "expandable_segments:True")


@dataclass(frozen=True)
class AllocatorSizes:
    """Sizes of tensors in MiB, how often each is made, and the steps of the cases that fragment memory."""

    sizes: tuple[int, ...] = (1, 4, 16, 64, 256)
    repeats: int = 50
    steps: int = 24


SIZES = AllocatorSizes()
SMALL = AllocatorSizes(sizes=(1, 16, 256), repeats=5, steps=8)


class Reuse(NamedTuple):
    """A size in MiB, and the time of filling a new tensor of it, cached and fresh, in seconds."""

    mib: int
    cached_s: float
    fresh_s: float

    @property
    def ratio(self) -> float:
        """How many times as long a fresh one takes."""
        return self.fresh_s / self.cached_s


class Peak(NamedTuple):
    """A case with a setting: what tensors and allocator held at the peak, in bytes, and calls of the driver."""

    case: str
    settings: str
    allocated_bytes: int
    reserved_bytes: int
    driver_calls: int

    @property
    def unused(self) -> float:
        """The share of the reserved memory that no tensor held."""
        return 1 - self.allocated_bytes / self.reserved_bytes


class State(NamedTuple):
    """What is held after a step: by tensors, by the allocator, and as nvidia-smi sees it for this process; in bytes."""

    step: str
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int


def run(sizes: AllocatorSizes, cpu: None) -> Result:
    """The three questions, on the first GPU."""
    del cpu
    reuses = [_reuse(mib, sizes.repeats) for mib in sizes.sizes]
    states = _states()
    peaks = [_peak(case, settings, sizes.steps) for case in CASES for settings in SETTINGS]
    facts, conclusion = _conclude(reuses, states, peaks)
    return Result(
        name="allocator",
        devices={"gpu": _measure.devices()["gpu"]},
        tables=(_reuse_table(reuses), _state_table(states), _peak_table(peaks)),
        plots=(_reuse_plot(reuses), _peak_plot(peaks)),
        facts=facts,
        conclusion=conclusion,
    )


def _tensor(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=wt.gpu(0))


def _reuse(mib: int, repeats: int) -> Reuse:
    def cached() -> None:
        _tensor(mib).zero_()

    def fresh() -> None:
        _tensor(mib).zero_()
        torch.cuda.empty_cache()

    torch.cuda.empty_cache()
    cached_s = _measure.wall_s(lambda: _repeat(cached, repeats)) / repeats
    torch.cuda.empty_cache()
    fresh_s = _measure.wall_s(lambda: _repeat(fresh, repeats)) / repeats
    return Reuse(mib, cached_s, fresh_s)


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _states() -> list[State]:
    torch.cuda.empty_cache()
    found = [_state("before")]
    tensors = [_tensor(64) for _ in range(4)]
    found.append(_state("4 tensors of 64 MiB"))
    del tensors[1:]
    found.append(_state("3 of them deleted"))
    torch.cuda.empty_cache()
    found.append(_state("empty_cache()"))
    del tensors
    torch.cuda.empty_cache()
    return found


def _state(step: str) -> State:
    memory = wt.memory(wt.gpu(0))
    return State(step, memory.allocated_bytes, memory.reserved_bytes, memory.total_bytes - memory.free_bytes)


def _growing(steps: int) -> None:
    """Batches of growing length: an activation and a result half as large, gone before the next."""
    for step in range(steps):
        length = 64 + 8 * step
        made = _tensor(length), _tensor(length // 2)
        del made


def _staying(steps: int) -> None:
    """Tensors that stay, each made after a large one has gone."""
    kept = []
    for _ in range(steps):
        _tensor(256)
        kept.append(_tensor(4))


CASES: dict[str, Callable[[int], None]] = {"growing batches": _growing, "tensors that stay": _staying}


def _peak(case: str, settings: str, steps: int) -> Peak:
    gpu = wt.gpu(0)
    with _allocator(settings):
        torch.cuda.reset_peak_memory_stats(gpu)
        before = _driver_calls()
        CASES[case](steps)
        memory = wt.memory(gpu)
        calls = _driver_calls() - before
    return Peak(case, settings, memory.peak_allocated_bytes, memory.peak_reserved_bytes, calls)


@contextmanager
def _allocator(settings: str) -> Iterator[None]:
    """An empty allocator with these settings, and one with the defaults afterwards."""
    torch.cuda.empty_cache()
    _set(settings)
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        _set("")


def _set(settings: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its new name does not exist in PyTorch 2.6
        torch.cuda.memory._set_allocator_settings(settings or DEFAULTS)


def _driver_calls() -> int:
    return int(torch.cuda.memory_stats(wt.gpu(0))["num_device_alloc"])


def _reuse_table(reuses: list[Reuse]) -> Table:
    columns = (
        Column("MiB"),
        Column("from the cache", "s", ("gpu",)),
        Column("from the driver", "s", ("gpu",)),
        Column("takes longer", "times", ("gpu",)),
    )
    rows = tuple((reuse.mib, reuse.cached_s, reuse.fresh_s, reuse.ratio) for reuse in reuses)
    return Table("Filling a new tensor with zeros", columns, rows)


def _state_table(states: list[State]) -> Table:
    columns = (
        Column("after"),
        Column("allocated", "B"),
        Column("reserved", "B"),
        Column("used on the GPU", "B", ("gpu",)),
    )
    return Table("What empty_cache gives back", columns, tuple(states))


def _peak_table(peaks: list[Peak]) -> Table:
    columns = (
        Column("case"),
        Column("setting"),
        Column("tensors hold", "B"),
        Column("reserved", "B"),
        Column("unused", "share"),
        Column("calls of the driver"),
    )
    rows: list[tuple[Value, ...]] = [
        (p.case, p.settings or "the defaults", p.allocated_bytes, p.reserved_bytes, p.unused, p.driver_calls)
        for p in peaks
    ]
    return Table("At the peak", columns, tuple(rows))


def _reuse_plot(reuses: list[Reuse]) -> Plot:
    sizes = tuple(float(reuse.mib) for reuse in reuses)
    series = (
        Series("from the cache", sizes, tuple(reuse.cached_s for reuse in reuses), ("gpu",)),
        Series("from the driver", sizes, tuple(reuse.fresh_s for reuse in reuses), ("gpu",)),
    )
    return Plot("Filling a new tensor with zeros", Axis("MiB", log=True), Axis("time", "s", log=True), series)


def _peak_plot(peaks: list[Peak]) -> Plot:
    names = tuple(settings or "the defaults" for settings in SETTINGS)
    series = tuple(Series(case, names, tuple(p.unused for p in peaks if p.case == case)) for case in CASES)
    return Plot("Reserved memory that no tensor holds", Axis("setting"), Axis("unused", "share"), series, kind="bars")


def _conclude(reuses: list[Reuse], states: list[State], peaks: list[Peak]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    slowest = max(reuses, key=lambda reuse: reuse.ratio)
    _, _, deleted, emptied = states
    facts = {
        "size": Fact(slowest.mib * MIB, "B"),
        "ratio": Fact(slowest.ratio, "times"),
        "deleted": Fact(deleted.reserved_bytes - deleted.allocated_bytes, "B"),
        "given": Fact(deleted.used_bytes - emptied.used_bytes, "B"),
        "kept": Fact(emptied.allocated_bytes, "B"),
    }
    first = "A new tensor of {size} takes {ratio} as long from the driver as from the cache; of the {deleted} that "
    first += "deleted tensors leave, `empty_cache()` gives {given} back, and the {kept} that a tensor holds stay."
    parts = []
    for number, case in enumerate(CASES):
        mine = [peak for peak in peaks if peak.case == case]
        best = min(mine, key=lambda peak: peak.reserved_bytes)
        facts[f"defaults_{number}"] = Fact(mine[0].unused, "share")
        facts[f"best_{number}"] = Fact(best.unused, "share")
        cure = f"`{best.settings}` leaves {{best_{number}}}" if best.settings else "no setting leaves less"
        parts.append(f"{{defaults_{number}}} with {case}, where {cure}")
    second = f"The share of the reserved memory that no tensor holds at the peak is, by default, {'; '.join(parts)}."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
