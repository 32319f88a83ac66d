"""How many samples a step takes, where the trace says so, and what says it; nothing is guessed without being named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from understudy.trace.operation import Kind, Site
from understudy.trace.trace import Trace

SKIPPED_STEPS = 3  # as in _time.py: from so many steps on, the first is left out
HTOD = "Memcpy HtoD"


@dataclass(frozen=True)
class Samples:
    """`number` of samples a step and process. `loader` says that a DataLoader at `site` delivered them.

    Otherwise they are the first dimension of what the line `site` copies to a device, on which all such copies of the
    steps agree.
    """

    number: float
    site: Site
    loader: bool

    def words(self, step_ns: int | None, line: str, processes: int) -> str:
        """Throughput with what it is derived from; empty without a step. `line` is the site as the report writes it."""
        if not step_ns:
            return ""
        source = f"the DataLoader at {line}" if self.loader else f"the first dimension of what {line} copies"
        each = f" in each of {processes} processes" if processes > 1 else ""
        return f"{self.number * 1e9 / step_ns:,.0f} samples a second{each} ({self.number:,.4g} a step, by {source})"


def measure(trace: Trace) -> Samples | None:
    """The samples of a steady step; None where neither a loader nor the copies of the inputs say how many."""
    delivered: list[int] = []
    lines: Counter[int] = Counter()
    copies: Counter[tuple[int, int, int]] = Counter()  # (line, signature, bytes) -> times
    steps = batch = 0
    ends = sum(kind == Kind.STEP for kind in trace.rows.column(0))
    skip = ends >= SKIPPED_STEPS
    for kind, _, signature, site, _, _, _, value in trace.rows:
        if kind == Kind.COPY:
            if steps < ends:
                copies[site, signature, value] += 1
        elif kind == Kind.BATCH:
            batch += value
            lines[site] += 1
        elif kind == Kind.STEP:
            steps += 1
            if skip and steps == 1:
                copies.clear()
            else:
                delivered.append(batch)
            batch = 0
    number = median(delivered) if delivered else 0
    if number:
        return Samples(number, trace.sites[lines.most_common(1)[0][0]], True)
    return _of_copies(trace, copies, ends - skip)


def _of_copies(trace: Trace, copies: Counter[tuple[int, int, int]], steps: int) -> Samples | None:
    """The same from the copies to devices: their first dimension, where all of them agree on it."""
    inputs: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (line, shape) -> (times, bytes)
    for (site, number, size), times in copies.items():
        signature = trace.signatures[number]
        if signature.name.startswith(HTOD) and signature.shapes and signature.shapes[0]:
            key = site, signature.shapes[0]
            before = inputs.get(key, (0, 0))
            inputs[key] = before[0] + times, before[1] + times * size
    if steps < 1 or len({shape[0] for _, shape in inputs}) != 1:
        return None
    (site, shape), (times, _) = max(inputs.items(), key=lambda item: item[1][1])
    if shape[0] < 2 or times < steps:
        return None
    return Samples(shape[0] * times / steps, trace.sites[site], False)
