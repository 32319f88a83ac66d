"""Which part of a step an operation belongs to, as far as the program's own lines tell: data, forward, backward, ..."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np

from windtunnel.trace.columns import distinct
from windtunnel.trace.history import History
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Record, Trace

FORWARD, BACKWARD, OPTIMIZER, DATA = "forward", "backward", "optimizer", "data"
BACKWARD_CALL = re.compile(r"\.backward\(|autograd\.grad\(")
STEP_CALL = re.compile(r"\.step\(")
OPTIMIZERS = ("aten::_foreach_", "aten::_fused_")
TO_DEVICE = "HtoD"
ORDER = "", DATA, FORWARD, BACKWARD, OPTIMIZER
"""Phases as numbers: from the third on they are parts of a step."""


class Phases:
    """The phases of a trace's operations; none where no line of the program calls a backward pass."""

    def __init__(self, trace: Trace) -> None:
        self._lines = {site: trace.line(site) for site in trace.sites if site.file}
        self.known = any(BACKWARD_CALL.search(line) for line in self._lines.values())
        self._times: list[int] = []
        self._names: list[str] = []
        if self.known:
            self._read(trace)

    def _read(self, trace: Trace) -> None:
        """Find when phases begin, by the allocations."""
        known: dict[tuple[int, int], str] = {}
        for changes in History(trace).changes():
            own = changes.only(changes.allocates)
            pairs = own.site * len(trace.roles) + own.role
            found, place = distinct(pairs)
            names = []
            for pair in found:
                key = divmod(pair, len(trace.roles))
                if key not in known:
                    known[key] = self.of(trace.sites[key[0]], trace.roles[key[1]].operator)
                names.append(known[key])
            numbers = np.array([ORDER.index(name) for name in names], dtype=np.int64)[place]
            named = numbers > ORDER.index(DATA)
            numbers, times = numbers[named], own.time_ns[named]
            last = ORDER.index(self._names[-1]) if self._names else 0
            begins = np.diff(numbers, prepend=last) != 0
            self._times += times[begins].tolist()
            self._names += [ORDER[number] for number in numbers[begins].tolist()]

    def of(self, site: Site, operator: str) -> str:
        """The phase of an operator at a line; empty where nothing tells."""
        line = self._lines.get(site, "")
        if not self.known or not line:
            return ""
        if TO_DEVICE in operator:
            return DATA
        if operator.startswith(OPTIMIZERS) or (STEP_CALL.search(line) and not BACKWARD_CALL.search(line)):
            return OPTIMIZER
        return BACKWARD if BACKWARD_CALL.search(line) else FORWARD

    def of_record(self, record: Record) -> str:
        """The phase of an operation: by its line, or where it has none by the allocations before it."""
        name = record.signature.name
        if record.site.file or TO_DEVICE in name:
            return self.of(record.site, name)
        at = bisect_right(self._times, record.issued_ns)
        return self._names[at - 1] if at else ""
