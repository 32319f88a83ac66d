"""The timeline's numbers for the HTML report, packed: 8 to 12 bytes an operation, before base64.

Each lane holds three columns of integers of 32 bits, or of 16 where the column's numbers fit: when an operation starts
and how long it takes, in units of `unit_ns`, and a number that says which kind of operation, with which name, from
which line.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from windtunnel.reports.parts.phases import Phases
from windtunnel.reports.parts.summary import short
from windtunnel.trace.blocks import blocks
from windtunnel.trace.columns import highest
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Record, Trace

MAX_OPERATIONS = 300_000  # about 3.5 MB of page; what comes later is left out, and the page says so
CLASSES = {Kind.KERNEL: 0, Kind.COPY: 1, Kind.COLLECTIVE: 2, Kind.SYNCHRONIZE: 3, Kind.HOST: 4}
CLASS_NAMES = ("kernel", "copy", "collective", "host waits", "host works", "host launches")
LAUNCHES = len(CLASS_NAMES) - 1
LAUNCHED = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE})
LAUNCH_NS = 20_000
"""The longest that a launch is shown to take: until the host's next one, or so long."""
SHOWN_STEPS = 2
"""At which it opens: those after the first, as the devices do them."""
MOST_STEPS, MOST_PHASES = 2_000, 4_000


class _Lane:
    def __init__(self, label: str) -> None:
        self.label = label
        self.columns = array("I"), array("I"), array("I")

    def as_dict(self) -> Json:
        starts, durations, whats = self.columns
        order = None
        if any(later < earlier for earlier, later in pairwise(starts)):
            order = sorted(range(len(starts)), key=starts.__getitem__)
        columns = [array("I", (column[i] for i in order)) if order else column for column in (starts, durations, whats)]
        return {
            "label": self.label,
            "count": len(starts),
            "starts": _packed(columns[0]),
            "durations": _packed(columns[1]),
            "whats": _packed(columns[2]),
        }


def timeline(trace: Trace, begin_ns: int, end_ns: int, step_ns: tuple[int, int] | None = None) -> Json:
    """Lanes, their packed operations and the table of what these are.

    What the host does after the devices' last operation is left out; without any, the host's rows are all there is.
    `step_ns` is the steady step at which it opens.
    """
    if end_ns <= begin_ns:
        begin_ns, end_ns = _span(trace)
    unit_ns = max(1, -(-(end_ns - begin_ns) // 0xFFFF_FFFE))
    lanes: dict[tuple[int, int, int], _Lane] = {}
    whats: dict[tuple[int, str, str], int] = {}
    shown = left_out = 0
    launches = _Launches()

    def add(lane: _Lane, kind: int, record: Record, start_ns: int, stop_ns: int) -> None:
        start_ns = max(start_ns, begin_ns)
        starts, durations, numbers = lane.columns
        starts.append((start_ns - begin_ns) // unit_ns)
        durations.append(max(0, min(stop_ns, end_ns) - start_ns) // unit_ns)
        numbers.append(whats.setdefault((kind, record.signature.name, short(record.site)), len(whats)))

    for number, record in enumerate(trace):
        if shown == MAX_OPERATIONS:
            left_out = _shown(trace, begin_ns, end_ns, number)
            break
        for launch, stop_ns in launches.before(record):
            if begin_ns <= launch.issued_ns < end_ns and shown < MAX_OPERATIONS:
                shown += 1
                add(_host_lane(lanes, launch.lane.thread), LAUNCHES, launch, launch.issued_ns, stop_ns)
        kind = CLASSES.get(record.kind)
        if kind is None or record.end_ns <= begin_ns or record.start_ns >= end_ns:
            continue
        if shown == MAX_OPERATIONS:
            left_out = _shown(trace, begin_ns, end_ns, number)
            break
        shown += 1
        add(_lane(lanes, record), kind, record, record.start_ns, record.end_ns)
    steps, phases = _parts(trace, begin_ns)
    if step_ns is not None and len(steps) > SHOWN_STEPS:
        step_ns = begin_ns + steps[0][0], begin_ns + steps[SHOWN_STEPS][0]
    return {
        "unit_ns": unit_ns,
        "length_ns": end_ns - begin_ns,
        "step_ns": None if step_ns is None else [max(0, step_ns[0] - begin_ns), min(end_ns, step_ns[1]) - begin_ns],
        "lanes": [lanes[key].as_dict() for key in sorted(lanes)],
        "whats": [list(what) for what in whats],
        "classes": list(CLASS_NAMES),
        "left_out": left_out,
        "steps": steps,
        "phases": phases,
    }


def _shown(trace: Trace, begin_ns: int, end_ns: int, first: int) -> int:
    """How many rows from number `first` on a timeline of this length shows."""
    kinds = np.array([kind in CLASSES for kind in Kind])
    found = (kinds[block.kind] & (block.end > begin_ns) & (block.start < end_ns) for block in blocks(trace, first))
    return sum(int(one.sum()) for one in found)


def _span(trace: Trace) -> tuple[int, int]:
    """From the first start to the last end of all rows that the timeline shows."""
    kinds = np.array([kind in CLASSES for kind in Kind])
    spans: list[tuple[int, int]] = []
    for block in blocks(trace):
        which = kinds[block.kind]
        if which.any():
            spans.append((int(block.start[which].min()), int(block.end[which].max())))
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else (0, 0)


class _Launches:
    """Each thread's last launch, which ends where the host's next operation begins."""

    def __init__(self) -> None:
        self._last: dict[int, Record] = {}

    def before(self, record: Record) -> Iterator[tuple[Record, int]]:
        """The launch that ends before a record, and when."""
        if record.kind not in CLASSES:
            return
        thread = record.lane.thread
        last = self._last.pop(thread, None)
        if last is not None:
            until = record.start_ns if record.kind in (Kind.SYNCHRONIZE, Kind.HOST) else record.issued_ns
            yield last, min(max(until, last.issued_ns), last.issued_ns + LAUNCH_NS)
        if record.kind in LAUNCHED:
            self._last[thread] = record


def _parts(trace: Trace, begin_ns: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, str]]]:
    """Where steps end on the devices, and the phases of the first device: (start, length, name), in ns."""
    known = Phases(trace)
    steps: list[tuple[int, int]] = []
    runs: list[tuple[int, int, str]] = []
    until_ns = 0
    first: int | None = None
    for block in blocks(trace):
        if len(steps) >= MOST_STEPS and (len(runs) >= MOST_PHASES or not known.known):
            break
        launched = np.where(block.on_device, block.end, 0)
        until = highest(launched, until_ns)
        until_ns = max(until_ns, int(launched.max()))
        asked = block.kind == Kind.STEP
        if known.known and len(runs) < MOST_PHASES:
            asked |= block.on_device
        for record, end_ns in zip(block.records(asked), until[asked].tolist(), strict=True):
            if record.kind == Kind.STEP:
                if len(steps) < MOST_STEPS:
                    steps.append((end_ns - begin_ns, record.value))
                continue
            first = record.lane.device if first is None else first
            phase = known.of_record(record) if record.lane.device == first else ""
            if phase and len(runs) < MOST_PHASES:
                _add_phase(runs, phase, record, begin_ns, steps[-1][0] if steps else None)
    return steps, runs


def _add_phase(
    runs: list[tuple[int, int, str]], phase: str, record: Record, begin_ns: int, step_ns: int | None
) -> None:
    """Add an operation to the phase that it continues, or begin one; `step_ns` is when the last step ended."""
    start_ns, length_ns = record.start_ns - begin_ns, record.end_ns - record.start_ns
    if runs and runs[-1][2] == phase and not (step_ns is not None and runs[-1][0] < step_ns <= start_ns):
        before_ns, so_far_ns, _ = runs[-1]
        runs[-1] = before_ns, max(so_far_ns, start_ns + length_ns - before_ns), phase
    else:
        runs.append((start_ns, length_ns, phase))


def _lane(lanes: dict[tuple[int, int, int], _Lane], record: Record) -> _Lane:
    device, stream, thread = record.lane
    if record.kind in (Kind.SYNCHRONIZE, Kind.HOST):
        return _host_lane(lanes, thread)
    return lanes.setdefault((device, stream, 0), _Lane(f"cuda:{device} stream {stream}"))


def _host_lane(lanes: dict[tuple[int, int, int], _Lane], thread: int) -> _Lane:
    return lanes.setdefault((-1, 0, thread), _Lane(f"host thread {thread}" if thread else "host main thread"))


def _packed(numbers: array[int]) -> str:
    numbers = array("H" if max(numbers, default=0) <= 0xFFFF else "I", numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")
