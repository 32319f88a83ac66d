"""Which part of a step an operation belongs to, as far as the program's own lines tell: data, forward, backward, ..."""

from __future__ import annotations

import re
from bisect import bisect_right

from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Record, Trace

FORWARD, BACKWARD, OPTIMIZER, DATA = "forward", "backward", "optimizer", "data"
BACKWARD_CALL = re.compile(r"\.backward\(|autograd\.grad\(")
STEP_CALL = re.compile(r"\.step\(")
OPTIMIZERS = ("aten::_foreach_", "aten::_fused_")
TO_DEVICE = "HtoD"


class Phases:
    """The phases of a trace's operations; none where no line of the program calls a backward pass."""

    def __init__(self, trace: Trace) -> None:
        self._lines = {site: trace.line(site) for site in trace.sites if site.file}
        self.known = any(BACKWARD_CALL.search(line) for line in self._lines.values())
        self._times: list[int] = []
        self._names: list[str] = []
        for action in trace.memory_actions() if self.known else ():
            phase = self.of(action.site, action.role.operator) if action.action == "alloc" else ""
            if phase and phase != DATA and (not self._names or self._names[-1] != phase):
                self._times.append(action.time_ns)
                self._names.append(phase)

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
