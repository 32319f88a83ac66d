"""A cluster's job in a few lines: who was played for whom, what the job does in a second, memory, communication."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot
from typing import NamedTuple

import numpy as np

from windtunnel.gpus.variation import CLOCK_GPUS, later
from windtunnel.reports.parts import throughput
from windtunnel.reports.parts.time import Spans, measure, overlap, union
from windtunnel.trace.blocks import blocks
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share

MOST_CLASSES = 6
LEAST_SHARE = 0.001


def describe(traces: Mapping[int, Trace], played: str, stands_for: Mapping[int, str], world: int) -> dict[str, str]:
    """The lines by their labels; `traces` are of the ranks that stand for others, `stands_for` names those others."""
    if not traces:
        return {}
    timings = {rank: measure(trace) for rank, trace in traces.items()}
    slowest = max(traces, key=lambda rank: timings[rank].step_ns or 0)
    step_ns = timings[slowest].step_ns
    lines = {"ranks": played, **_timed(traces[slowest], step_ns, timings[slowest].steps, world)}
    lines["memory by class"] = _memory(traces, stands_for)
    return {label: words for label, words in lines.items() if words}


def retimed(trace: Trace) -> dict[str, str]:
    """The lines of a rank's trace that was timed anew: those on time are its own, the others as they were."""
    lines: dict[str, str] = dict(trace.facts.get("job", {}))
    timing = measure(trace)
    found = lines | _timed(trace, timing.step_ns, timing.steps, int(trace.facts.get("world_size") or 1))
    return {label: words for label, words in found.items() if words}


def _timed(trace: Trace, step_ns: int | None, steps: int, world: int) -> dict[str, str]:
    """The lines on time, of the rank with the longest step."""
    exposed = _exposed(trace, step_ns, steps) if step_ns else {}
    return {
        "job": _rate(trace, step_ns, world),
        "step range": _range_words(_range(trace, exposed, step_ns, world), step_ns, world) if step_ns else "",
        "exposed communication": _exposed_words(exposed, step_ns) if step_ns else "",
    }


class Range(NamedTuple):
    """Within what a step is known, in shares of it: by its kernels, the network, and the slowest GPU, which all others
    wait for and which is `late` by the clock. `between` is the exposed share of collectives between nodes, which `low`
    and `high` are factors of; `jitter` is the seed by which the GPUs of the step itself differ already."""

    kernels: float
    between: float
    low: float
    high: float
    late: float
    jitter: int | None = None

    @property
    def least(self) -> float:
        """The lower end, as a factor of the step."""
        return 1.0 - hypot(self.kernels * (1.0 - self.between), (1.0 - self.low) * self.between)

    @property
    def most(self) -> float:
        """The upper end."""
        return 1.0 + hypot(self.kernels * (1.0 - self.between), (self.high - 1.0) * self.between) + self.late


def step_range(trace: Trace, step_ns: int, steps: int, world: int) -> Range | None:
    """The range of the step of the rank with the longest one; None where nothing says how far kernels are known."""
    return _range(trace, _exposed(trace, step_ns, steps), step_ns, world)


def _range(trace: Trace, exposed: Mapping[Place, float], step_ns: int, world: int) -> Range | None:
    kernels = trace.facts.get("band")
    low, high = trace.facts.get("network_band") or (1.0, 1.0)
    between = sum(ns for (_, nodes), ns in exposed.items() if nodes > 1) / step_ns
    seed = trace.facts.get("jitter")
    late = later(world) if seed is None else 0.0
    return None if kernels is None else Range(kernels, between, low, high, late, seed)


def _range_words(found: Range | None, step_ns: int, world: int) -> str:
    if found is None:
        return ""
    least, most = (format_ns(round(step_ns * share)) for share in (found.least, found.most))
    words = f"{least} to {most}: kernels within ±{format_share(found.kernels)}"
    if found.between >= LEAST_SHARE:
        factors = f"{found.low:.2f} to {found.high:.2f} of it"
        words += f", the network's {format_share(found.between)} of the step within {factors}"
    if found.jitter is not None:
        return f"{words}, {world} GPUs that differ as --jitter {found.jitter} draws them"
    if not found.late:
        return words
    return f"{words}, the slowest of {world} GPUs {format_share(found.late)} later than that of {CLOCK_GPUS}"


def _rate(trace: Trace, step_ns: int | None, world: int) -> str:
    """What the job does in a second: by as many batches as its samplers have replicas, else as there are ranks."""
    if not step_ns:
        return ""
    samples, tokens = throughput.measure(trace), throughput.tokens(trace)
    replicas = trace.facts.get("replicas")
    words = [
        f"{number * (replicas or world) * 1e9 / step_ns:,.0f} {name} a second"
        for name, number in (("samples", samples.number if samples else 0), ("tokens", tokens or 0))
        if number
    ]
    if not words:
        return ""
    which = f"with {replicas} replicas" if replicas else f"if each of {world} ranks has batches of its own"
    return f"{', '.join(words)} in all, {which}"


def _memory(traces: Mapping[int, Trace], stands_for: Mapping[int, str]) -> str:
    """The peak of each class."""
    parts = []
    for rank, trace in traces.items():
        totals = [total for total in trace.facts.get("devices", ()) if total.get("peak_reserved_bytes")]
        if totals:
            total = max(totals, key=lambda one: one["peak_reserved_bytes"])
            parts.append(f"ranks {stands_for[rank]} {format_bytes(total['peak_allocated_bytes'])}")
    more = f" and {len(parts) - MOST_CLASSES} more classes" if len(parts) > MOST_CLASSES else ""
    return ", ".join(parts[:MOST_CLASSES]) + more


Place = tuple[int, int]
"""How many ranks a group has, and on how many nodes."""


def _exposed(trace: Trace, step_ns: int, steps: int) -> dict[Place, float]:
    """What no kernel hides of the collectives and messages of a steady step, in ns by their groups."""
    kernels, spans = _spans(trace, steps)
    busy = union(*kernels.ordered()[:2])
    counted = max(1, steps - 1)
    found = {}
    for place, lanes in sorted(spans.items()):
        own = union(*lanes.ordered()[:2])
        exposed = (int((own[1] - own[0]).sum()) - overlap(own, busy)) / counted
        if exposed >= LEAST_SHARE * step_ns:
            found[place] = exposed
    return found


def _exposed_words(exposed: Mapping[Place, float], step_ns: int) -> str:
    return ", ".join(
        f"{format_ns(round(ns))} a step ({format_share(ns / step_ns)}) in groups of {ranks} ranks"
        + (f" on {nodes} nodes" if nodes > 1 else "")
        for (ranks, nodes), ns in exposed.items()
    )


def _spans(trace: Trace, steps: int) -> tuple[Spans, dict[Place, Spans]]:
    """The kernels, and the collectives by their groups, from the first step's end to the last's."""
    kernels = Spans()
    spans: dict[Place, Spans] = {}
    details = [dict(signature.detail) for signature in trace.signatures]
    done = 0
    for block in blocks(trace):
        number = done + np.cumsum(block.kind == Kind.STEP)  # of steps that have ended
        if done == 0 and number[-1]:
            kernels, spans = Spans(), {}
        done = int(number[-1])
        within = number >= min(done, 1)
        if steps > 1:
            within &= number < steps
        which = within & (block.kind == Kind.KERNEL)
        kernels.add(block.start[which], block.end[which])
        for index in np.flatnonzero(within & (block.kind == Kind.COLLECTIVE)).tolist():
            detail = details[block.signature[index]]
            place = int(detail.get("ranks", 1)), int(detail.get("nodes", 1))
            spans.setdefault(place, Spans()).add(*(one[index : index + 1] for one in (block.start, block.end)))
        if done >= steps > 1:
            break
    return kernels, spans
