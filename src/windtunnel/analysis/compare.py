"""Two runs side by side: step time, busy share, where the time goes, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from windtunnel import foreign
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.schema import HostWorkRecord
from windtunnel.trace.trace import Trace

ON_DEVICE = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE})
MOST_OPERATORS = 10


@dataclass
class Numbers:
    """What one run amounts to. Times in ns, sizes in bytes; `step_ns` is the median step, None without steps.

    `graphs` are compiled ones. `operators` maps a kernel's name to (calls, ns); a JSON report does not say them.
    """

    gpus: list[str] = field(default_factory=list)
    duration_ns: int = 0
    step_ns: int | None = None
    busy_share: float = 0.0
    kernels: int = 0
    kernel_ns: int = 0
    copies: int = 0
    copied_bytes: int = 0
    collectives: int = 0
    synchronizations: int = 0
    wait_ns: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    graphs: int = 0
    operators: dict[str, tuple[int, int]] = field(default_factory=dict)


COMPARED = (
    "duration_ns", "step_ns", "busy_share", "kernels", "kernel_ns", "copies", "copied_bytes", "collectives",
    "synchronizations", "wait_ns", "peak_allocated_bytes", "peak_reserved_bytes", "graphs",
)  # fmt: skip
"""The numbers that decide whether two runs differ; which GPUs they ran on does not."""


@dataclass(frozen=True)
class Difference:
    """One number that differs; `change` is relative to the first run, None where that is zero or missing."""

    name: str
    first: float | None
    second: float | None
    change: float | None


@dataclass(frozen=True)
class Comparison:
    """Two runs and their differences, the operators' by how many ns they make."""

    first: Numbers
    second: Numbers
    differences: tuple[Difference, ...]
    operators: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs by more than was allowed."""
        return not self.differences and not self.operators

    def to_json(self) -> Json:
        """Plain data for `--json`."""
        return {"same": self.same, **asdict(self)}


def load(path: str | Path) -> Numbers:
    """The numbers of a saved trace, or of a JSON report.

    Raises:
        FileFormatError: the file is neither.
        OSError: the file cannot be read.
    """
    if foreign.read_bytes(path, 1) != b"{":
        return measure(Trace.load(path))
    try:
        return _of_report(foreign.from_json(foreign.read_bytes(path), path, "a report of windtunnel"))
    except foreign.UNFIT as error:
        raise FileFormatError(
            f"{path} is not a report of windtunnel ({error}): write one with `windtunnel run --report out.json`"
        ) from error


def host_work(path: str) -> Json:
    """What a JSON report of a run with data says of the host's own work.

    Raises:
        FileFormatError: it is no such report.
        UsageError: it cannot be read, or says nothing of it.
    """
    try:
        report = foreign.from_json(foreign.read_bytes(path), path, "a report of windtunnel")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    found = report.get("host") if isinstance(report, dict) else None
    if found is None:
        raise UsageError(
            f"{path} says nothing of the host's own work: write it by `windtunnel run --report run.json`, with data; "
            "work of less than 1 ms and 5 % of a step is left out"
        )
    return dict(foreign.typed(found, HostWorkRecord, path, "says nothing that can be read of the host's own work"))


def measure(trace: Trace) -> Numbers:
    """The numbers of a trace."""
    return measure_with_steps(trace)[0]


def measure_with_steps(trace: Trace) -> tuple[Numbers, list[int]]:
    """The numbers of a trace, and the lengths of its steps in ns."""
    numbers = Numbers([gpu.get("name", "unknown GPU") for gpu in trace.facts.get("gpus", [])])
    spans: dict[int, list[tuple[int, int]]] = {}
    steps: list[int] = []
    begin_ns: int | None = None
    end_ns = 0
    for record in trace:
        if record.kind in ON_DEVICE:
            begin_ns = record.start_ns if begin_ns is None else min(begin_ns, record.start_ns)
            end_ns = max(end_ns, record.end_ns)
            spans.setdefault(record.lane.device, []).append((record.start_ns, record.end_ns))
        if record.kind == Kind.KERNEL:
            numbers.kernels += 1
            numbers.kernel_ns += record.duration_ns
            calls, spent = numbers.operators.get(record.signature.name, (0, 0))
            numbers.operators[record.signature.name] = calls + 1, spent + record.duration_ns
        elif record.kind == Kind.COPY:
            numbers.copies += 1
            numbers.copied_bytes += record.value
        elif record.kind == Kind.COLLECTIVE:
            numbers.collectives += 1
        elif record.kind == Kind.SYNCHRONIZE:
            numbers.synchronizations += 1
            numbers.wait_ns += record.duration_ns
        elif record.kind == Kind.STEP:
            steps.append(end_ns or record.end_ns)  # what was launched before is done then, as the report counts steps
    numbers.duration_ns = max(0, end_ns - (begin_ns or 0))
    lengths = [later - earlier for earlier, later in pairwise(steps)]
    numbers.step_ns = int(median(lengths)) if lengths else None
    if numbers.duration_ns and spans:
        numbers.busy_share = round(sum(map(_covered, spans.values())) / numbers.duration_ns / len(spans), 6)
    numbers.graphs = sum(note.code == "compiled-graph" for note in trace.notes)
    _add_peaks(numbers, trace.facts.get("devices", []))
    return numbers, lengths


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    covered = until = 0
    for start, end in sorted(spans):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


def _add_peaks(numbers: Numbers, devices: Iterable[Json]) -> None:
    for device in devices:
        allocated, reserved = device.get("peak_allocated_bytes"), device.get("peak_reserved_bytes")
        numbers.peak_allocated_bytes = max(numbers.peak_allocated_bytes, allocated or 0)
        numbers.peak_reserved_bytes = max(numbers.peak_reserved_bytes, reserved or 0)


def _of_report(report: Json) -> Numbers:
    devices = report["devices"]
    used = [device for device in devices if device["kernels"] or device["copies"] or device["collectives"]]
    numbers = Numbers([device["name"] for device in devices], int(report["duration_ns"]))
    numbers.step_ns = report["timing"]["step_ns"]
    numbers.busy_share = round(sum(device["busy_share"] for device in used) / len(used), 6) if used else 0.0
    for name in ("kernels", "kernel_ns", "copies", "copied_bytes", "collectives", "synchronizations", "wait_ns"):
        setattr(numbers, name, sum(int(device[name]) for device in devices))
    numbers.graphs = len((report.get("compiled") or {"graphs": []})["graphs"])
    _add_peaks(numbers, devices)
    return numbers


def compare(first: Numbers, second: Numbers, tolerance: float = 0.0) -> Comparison:
    """What differs by more than `tolerance`, a share of the first run's number."""
    differences = [
        difference
        for name in COMPARED
        if (difference := _difference(name, getattr(first, name), getattr(second, name), tolerance)) is not None
    ]
    operators = []
    if first.operators and second.operators:
        for name in {**first.operators, **second.operators}:
            before, after = (numbers.operators.get(name, (0, 0))[1] for numbers in (first, second))
            difference = _difference(name, before, after, tolerance)
            if difference is not None:
                operators.append(difference)
    operators.sort(key=lambda one: (-abs((one.second or 0) - (one.first or 0)), one.name))
    return Comparison(first, second, tuple(differences), tuple(operators))


def _difference(name: str, first: float | None, second: float | None, tolerance: float) -> Difference | None:
    if first == second:
        return None
    change = None if not first or second is None else (second - first) / first
    if change is not None and abs(change) <= tolerance + 1e-9:
        return None
    return Difference(name, first, second, change)
