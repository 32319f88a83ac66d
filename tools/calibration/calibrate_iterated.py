"""The two constants of element-wise kernels that work out places, fitted anew and with operators left out.

`cost/families/iterated.py` has them; they come from an H100's kernels (`make hardware`), which a fit of their own says
again here, and which are predicted with each operator, precision and size left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tools.calibration.calibrate_neighbours import CUDA
from tools.corpus import recordings
from tools.corpus.tables import FOLDER
from tools.fitting import Array, Mask, Residuals, left_out
from windtunnel import gpus
from windtunnel.cost import CostModel, cache, flops
from windtunnel.cost.families import iterated, streams
from windtunnel.cost.files import shortest_ns
from windtunnel.operators.classes import bare, classify

TABLE = FOLDER / "kernels_hopper_h100-sxm5-80gb.json.gz"
LEAST = 1 << 22
"""Elements: smaller kernels wait for their launch."""
CYCLES, SHARPNESSES = np.arange(0.4, 1.001, 0.05), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Timing(NamedTuple):
    """A kernel: its call in words, its microseconds, and those of its launch, its bytes and a cycle an element."""

    name: str
    us: float
    floor_us: float
    memory_us: float
    cycle_us: float

    @property
    def operator(self) -> str:
        """Its words without sizes and precision."""
        return " ".join(word for word in self.name.split() if not any(one.isdigit() for one in word))


def read() -> list[Timing]:
    """The kernels of the table."""
    head, *rows = recordings.lines(TABLE)
    gpu = gpus.find(head["gpu"])
    cost = CostModel(gpu, CUDA)
    found = []
    for row in rows:
        calls = [recordings.signature(row["signatures"][at]) for at in row["order"] if at >= 0]
        if len(calls) != 1 or len(calls[0].shapes) <= calls[0].inputs:
            continue
        (call,) = calls
        problem = cost.problem(call, bare(call.name), *cost.precision(call))
        elements = prod(call.shapes[call.inputs])
        of = classify(call.name)
        if of.name not in iterated.ELEMENTWISE or not iterated.is_iterated(problem) or elements < LEAST:
            continue
        if iterated.form(problem) == "scattered":
            continue
        memory_us = cache.moved_ns(gpu, flops.bytes_moved(call), streams.bandwidth(gpu)) / 1000.0
        floor_us = shortest_ns(of, gpu.generation) / 1000.0
        cycle_us = elements / (gpu.sm_count * gpu.cycles_per_us)
        found.append(Timing(row["name"], row["us"], floor_us, memory_us, cycle_us))
    return found


def predicted(some: Array, cycles: float, sharpness: float) -> Array:
    """Microseconds with these constants, of rows of numbers of the timings."""
    _, floor, memory, cycle = some.T
    found: Array = floor + (memory**sharpness + (cycles * cycle) ** sharpness) ** (1.0 / sharpness)
    return found


def fit(some: Array) -> tuple[float, float]:
    """The constants with the least mean of the logarithmic errors."""
    tried = [(cycles, sharpness) for cycles in CYCLES.tolist() for sharpness in SHARPNESSES]
    return min(tried, key=lambda one: float(np.mean(np.abs(np.log(predicted(some, *one) / some[:, 0])))))


def calibrate() -> None:
    """Print the errors: of bytes alone, of the constants as they are, fitted, and with kernels left out."""
    timings = read()
    numbers = np.array([one[1:] for one in timings])
    us = numbers[:, 0]
    now, best = (iterated.ELEMENT_CYCLES, iterated.SHARPNESS), fit(numbers)
    keys: dict[str, Callable[[Timing], Any]] = {
        "operator": lambda one: one.operator,
        "precision": lambda one: "fp32" in one.name,
        "size": lambda one: round(np.log2(one.cycle_us)),
    }

    def predict(_: Any, others: Mask, mine: Mask) -> Array:
        return predicted(numbers[mine], *fit(numbers[others]))

    print(f"cycles and sharpness {now}, fitted ({best[0]:.2f}, {best[1]})")
    rows = {"bytes alone": predicted(numbers, 0.0, 1.0), "as they are": predicted(numbers, *now)}
    rows |= {"fitted": predicted(numbers, *best)}
    rows |= {f"{name} left out": left_out([key(one) for one in timings], predict) for name, key in keys.items()}
    for name, times in rows.items():
        Residuals("", name, us / times).report()


check = calibrate
