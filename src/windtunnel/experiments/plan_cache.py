"""What does PyTorch's cache of FFT plans save, and what does it cost?

cuFFT needs a plan for each kind of transform: its length, its batch, its type. PyTorch keeps the plans that it has
made, a cache for each GPU, and a program can ask for its `size`, set its `max_size` and `clear()` it. A full cache
drops the plan that was used longest ago. A plan may hold GPU memory of its own, which is no tensor's: PyTorch's
statistics do not show it, and nvidia-smi does.

Signals of many lengths are transformed in turn, several times over: with room for all plans, with room for one fewer,
and padded to the next power of two. Whether a transform found its plan is seen from outside: the cache gets room for
one more before the transform, and has grown if a plan was made.

On emulated GPUs the counts are exact. That a plan holds a work area as large as its data where a length has a prime
factor above seven is an assumption, and the time that making a plan takes is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value

GPUS = 1
VALUES = False


@dataclass(frozen=True)
class PlanCacheSizes:
    """How many lengths, from which on, how far apart; signals in a batch; how often each length comes round."""

    lengths: int = 60
    shortest: int = 1000
    step: int = 37
    batch: int = 256
    rounds: int = 5


SIZES = PlanCacheSizes()
SMALL = PlanCacheSizes(lengths=8, batch=64, rounds=3)


class Use(NamedTuple):
    """What a way to transform all signals did with the cache."""

    name: str
    room: int
    transforms: int
    hits: int
    evictions: int
    plans: int
    held_bytes: int

    @property
    def hit_share(self) -> float:
        """The share of transforms that found their plan."""
        return self.hits / self.transforms


def run(sizes: PlanCacheSizes, cpu: None) -> Result:
    """All ways to transform, on the first GPU."""
    del cpu
    cache = wt.fft_plan_cache(wt.gpu(0))
    usual = int(cache.max_size)
    lengths = [sizes.shortest + sizes.step * i for i in range(sizes.lengths)]
    uses = [
        _use("room for all", lengths, sizes, usual),
        _use("room for one fewer", lengths, sizes, len(lengths) - 1),
        _use("no cache", lengths, sizes, 0),
        _use("padded to powers of two", [_padded(n) for n in lengths], sizes, usual),
    ]
    cache.max_size = usual
    facts, conclusion = _conclude(uses, len(lengths), usual)
    return Result(
        name="plan-cache",
        devices={"gpu": _measure.devices()["gpu"]},
        tables=(_table(uses),),
        plots=(_plot(uses),),
        facts=facts,
        conclusion=conclusion,
    )


def _padded(length: int) -> int:
    """The next power of two."""
    return 1 << (length - 1).bit_length()


def _use(name: str, lengths: list[int], sizes: PlanCacheSizes, room: int) -> Use:
    gpu = wt.gpu(0)
    cache = wt.fft_plan_cache(gpu)
    cache.clear()
    cache.max_size = room
    signals = torch.zeros(sizes.batch, max(lengths), dtype=torch.complex64, device=gpu)
    torch.fft.fft(signals[:, :2])  # what the first transform allocates besides its plan
    cache.clear()
    before = _beside_tensors()
    hits = evictions = 0
    for _ in range(sizes.rounds):
        for length in lengths:
            found = _found(signals[:, :length], room)
            hits += found
            evictions += not found and cache.size > room
            cache.max_size = room
    return Use(name, room, sizes.rounds * len(lengths), hits, evictions, int(cache.size), _beside_tensors() - before)


def _found(signal: torch.Tensor, room: int) -> bool:
    """Whether a transform finds its plan. The cache has room for one plan more afterwards, so that it shows."""
    cache = wt.fft_plan_cache(signal.device)
    cache.max_size = room + 1
    before = cache.size
    torch.fft.fft(signal)
    return bool(cache.size == before)


def _beside_tensors() -> int:
    """Bytes of the GPU that are in use and are not PyTorch's allocator's."""
    wt.synchronize()
    memory = wt.memory(wt.gpu(0))
    return memory.total_bytes - memory.free_bytes - memory.reserved_bytes


def _table(uses: list[Use]) -> Table:
    columns = (
        Column("way"),
        Column("room for"),
        Column("transforms"),
        Column("find a plan"),
        Column("share", "share"),
        Column("plans made"),
        Column("dropped"),
        Column("kept"),
        Column("memory held", "B", ("gpu",)),
    )
    rows: list[tuple[Value, ...]] = [
        (
            use.name,
            use.room,
            use.transforms,
            use.hits,
            use.hit_share,
            use.transforms - use.hits,
            use.evictions,
            use.plans,
            use.held_bytes,
        )
        for use in uses
    ]
    return Table("Transforms and plans", columns, tuple(rows))


def _plot(uses: list[Use]) -> Plot:
    names = tuple(use.name for use in uses)
    shares = Series("find a plan", names, tuple(use.hit_share for use in uses))
    return Plot("Transforms that find their plan", Axis("way"), Axis("share", "share"), (shares,), kind="bars")


def _conclude(uses: list[Use], lengths: int, usual: int) -> tuple[dict[str, Fact], tuple[str, ...]]:
    roomy, tight, _, padded = uses
    facts = {
        "usual": Fact(usual),
        "lengths": Fact(lengths),
        "roomy": Fact(roomy.hit_share, "share"),
        "tight": Fact(tight.hit_share, "share"),
        "held": Fact(roomy.held_bytes, "B"),
        "padded_plans": Fact(padded.plans),
        "padded_held": Fact(padded.held_bytes, "B"),
    }
    first = "With room for {usual} plans, {lengths} lengths in turn find their plan in {roomy} of the transforms; with "
    first += "room for one plan fewer than there are lengths, in {tight}"
    first += ", since the plan that was used longest ago is the one that comes next." if tight.hits == 0 else "."
    plans = "plans are" if padded.plans != 1 else "plan is"
    second = f"The plans hold {{held}} of memory; padded to powers of two {{padded_plans}} {plans} enough, and hold "
    second += "{padded_held}."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
