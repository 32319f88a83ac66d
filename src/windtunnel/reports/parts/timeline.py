"""The timeline's numbers for the HTML report, packed: 8 to 12 bytes an operation, before base64.

Each lane holds three columns of integers of 32 bits, or of 16 where the column's numbers fit: when an operation starts
and how long it takes, in units of `unit_ns`, and a number that says which kind of operation, with which name, from
which line.
"""

from __future__ import annotations

import base64
import sys
from array import array
from itertools import pairwise

from windtunnel.reports.parts.summary import short
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Record, Trace

MAX_OPERATIONS = 300_000  # about 3.5 MB of page; what comes later is left out, and the page says so
CLASSES = {Kind.KERNEL: 0, Kind.COPY: 1, Kind.COLLECTIVE: 2, Kind.SYNCHRONIZE: 3, Kind.HOST: 4}
CLASS_NAMES = ("kernel", "copy", "collective", "host waits", "host works")


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
    for record in trace:
        kind = CLASSES.get(record.kind)
        if kind is None or record.end_ns <= begin_ns or record.start_ns >= end_ns:
            continue
        if shown == MAX_OPERATIONS:
            left_out += 1
            continue
        shown += 1
        lane = _lane(lanes, record)
        start_ns = max(record.start_ns, begin_ns)
        what = whats.setdefault((kind, record.signature.name, short(record.site)), len(whats))
        starts, durations, numbers = lane.columns
        starts.append((start_ns - begin_ns) // unit_ns)
        durations.append(max(0, min(record.end_ns, end_ns) - start_ns) // unit_ns)
        numbers.append(what)
    return {
        "unit_ns": unit_ns,
        "length_ns": end_ns - begin_ns,
        "step_ns": None if step_ns is None else [max(0, step_ns[0] - begin_ns), min(end_ns, step_ns[1]) - begin_ns],
        "lanes": [lanes[key].as_dict() for key in sorted(lanes)],
        "whats": [list(what) for what in whats],
        "classes": list(CLASS_NAMES),
        "left_out": left_out,
    }


def _span(trace: Trace) -> tuple[int, int]:
    """From the first start to the last end of all rows that the timeline shows."""
    spans = [(record.start_ns, record.end_ns) for record in trace if record.kind in CLASSES]
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else (0, 0)


def _lane(lanes: dict[tuple[int, int, int], _Lane], record: Record) -> _Lane:
    device, stream, thread = record.lane
    if record.kind in (Kind.SYNCHRONIZE, Kind.HOST):
        key, label = (-1, 0, thread), f"host thread {thread}" if thread else "host main thread"
    else:
        key, label = (device, stream, 0), f"cuda:{device} stream {stream}"
    if key not in lanes:
        lanes[key] = _Lane(label)
    return lanes[key]


def _packed(numbers: array[int]) -> str:
    numbers = array("H" if max(numbers, default=0) <= 0xFFFF else "I", numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")
