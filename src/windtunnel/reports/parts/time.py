"""Where the time went: the steady step, each moment of a device by its cause, and the operators with most of it.

With three steps or more the first is left out: it holds what happens once (the CUDA context, libraries, allocations).
A step ends where the device has done what was asked of it before `optimizer.step()` returned.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, pairwise
from statistics import median

from windtunnel.trace import roofline
from windtunnel.trace.operation import FIRST_USE, LAUNCH_GAP_NS, Kind, Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, format_share, plural

SMALL = "small kernels"
BUSY = ("compute", "memory", SMALL, "communication", "copy")
"""Causes that a device has work for: kernels by what bounds them (too small for either bound: `small kernels`), and
transfers that no kernel hides. They sum up to the time that it is busy."""
CAUSES = (*BUSY, "launch", "wait", "first use", "input")
"""The same, and the gaps: `launch` are short ones between launches, `wait` those after the host had waited, `input`
those in which the host did something else."""
ORDERED = tuple(sorted(CAUSES))
NUMBERS = {cause: number for number, cause in enumerate(ORDERED)}
SMALL_NS = 20_000  # a kernel shorter than this, that does
SMALL_SHARE = 4  # less than a fourth of what the roofline allows in its time, is bound by its launch
TOP = 8
TENSOR_CORES = 7  # the first compute capability that has them
SKIPPED_STEPS = 3  # from so many steps on, the first is left out

Span = tuple[int, int]


@dataclass
class Split:
    """One device's time in the steady part of the run, by cause; all times in nanoseconds.

    `busy_ns` is how long at least one stream had work. `matrix_ns` is kernel time of operators that count operations
    (products, convolutions, attention), `tensor_core_ns` the part of it that tensor cores compute; `moved_ns` is the
    time of copies and collectives, `hidden_ns` the part of it behind kernels of the same device; `tensor_cores` says
    whether the device has any.
    """

    device: int
    window_ns: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    matrix_ns: int = 0
    tensor_core_ns: int = 0
    moved_ns: int = 0
    hidden_ns: int = 0
    tensor_cores: bool = True
    busy_ns: int = 0


@dataclass
class Operator:
    """All kernels of one name on one device, and their `share` of its kernels' time.

    `roofline` is the share of what the roofline allows, None if unknown.
    """

    device: int
    name: str
    times: int = 0
    duration_ns: int = 0
    roofline_ns: float = 0.0
    bound: str = "memory"
    share: float = 0.0

    @property
    def roofline(self) -> float | None:
        """Roofline time over the time it took."""
        return self.roofline_ns / self.duration_ns if self.duration_ns and self.roofline_ns else None


@dataclass
class Timing:
    """`step_ns` is the median steady step, None with fewer than two steps; `first_step_ns` the one that is left out."""

    steps: int = 0
    step_ns: int | None = None
    first_step_ns: int | None = None
    splits: list[Split] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    first_uses: list[tuple[str, int]] = field(default_factory=list)
    host_band: tuple[float, float] = (1.0, 1.0)

    def step_range_ns(self, band: float | None) -> tuple[int, int] | None:
        """Between which times four of five steps lie: kernels have a `band`, and hosts differ in what they issue.

        None where nothing says it.
        """
        if self.step_ns is None or band is None:
            return None
        host = self.host_share
        low, high = self.host_band
        if low == high:
            host = 0.0
        return (
            round(self.step_ns * ((1 - host) * (1 - band) + host * low)),
            round(self.step_ns * ((1 - host) * (1 + band) + host * high)),
        )

    @property
    def of_window(self) -> str:
        """What the splits are of: the steady steps or, where they are few, the run, from first operation to last."""
        return "of the steps" if self.steps >= SKIPPED_STEPS else "of the run"

    @property
    def host_share(self) -> float:
        """The share of a step that the host decides on the busiest device: launches, and kernels shorter than those."""
        issued = [sum(split.causes.get(cause, 0) for cause in ("launch", SMALL)) for split in self.splits]
        shares = [ns / split.window_ns for ns, split in zip(issued, self.splits, strict=True) if split.window_ns]
        return min(shares, default=0.0)

    @property
    def steps_per_s(self) -> float | None:
        """Throughput."""
        return 1e9 / self.step_ns if self.step_ns else None


def measure(trace: Trace) -> Timing:
    """The timing of a run, in one pass over its rows."""
    ends = sum(kind == Kind.STEP for kind in trace.rows.column(0))
    part = _Part(trace)
    done: list[int] = []
    skip = ends >= SKIPPED_STEPS
    begin: int | None = None
    for row in trace.rows:
        if row[0] == Kind.STEP:
            done.append(part.until_ns)
            if skip and len(done) == 1:
                begin = part.until_ns
                part.forget()
        elif begin is None or len(done) < ends or (begin <= row[5] and row[6] <= done[-1]):
            part.take(row)  # rows of other processes follow all of the first one's, and so do not tell its steps
    lengths = [later - earlier for earlier, later in pairwise(done)]
    timing = Timing(len(done), int(median(lengths)) if lengths else None)
    if done:
        timing.first_step_ns = done[0] - (part.began_ns or 0)
    timing.splits = [one.split(begin, done[-1] if skip else None) for _, one in sorted(part.devices.items())]
    for one in timing.splits:
        capability = (part.gpus[one.device].get("compute_capability") or [7]) if one.device < len(part.gpus) else [7]
        one.tensor_cores = capability[0] >= TENSOR_CORES
    low, high = trace.facts.get("host", {}).get("band", (1.0, 1.0))
    timing.host_band = float(low), float(high)
    timing.operators = part.operators()
    timing.first_uses = part.first_uses
    return timing


class Kernel:
    """What the roofline says of a signature on one GPU."""

    __slots__ = ("bound", "chain", "matrix", "roofline_ns", "tensor_cores")

    def __init__(self, signature: Signature, size_bytes: int, gpu: Json) -> None:
        peaks, bandwidth = gpu.get("peak_flops") or {}, gpu.get("memory_bandwidth_bytes_per_s") or 0
        dtype = signature.dtypes[0] if signature.dtypes else "float32"
        kind = roofline.precision(dtype, ("tf32", 1) in signature.detail, peaks)
        peak = peaks.get(kind) or peaks.get("fp32") or 0
        compute_ns, memory_ns = roofline.times_ns(signature.flops, size_bytes, peak, bandwidth)
        self.roofline_ns = max(compute_ns, memory_ns)
        self.bound = roofline.bound(compute_ns, memory_ns)
        self.chain = "cudnn_rnn" in signature.name  # a small kernel a step, each after the one before
        self.matrix = signature.flops > 0
        self.tensor_cores = self.matrix and roofline.on_tensor_cores(kind, (gpu.get("compute_capability") or [0])[0])

    def cause(self, duration_ns: int) -> str:
        """What one kernel of this signature was bound by."""
        small = (self.chain or duration_ns < SMALL_NS) and SMALL_SHARE * self.roofline_ns < duration_ns
        return SMALL if small and self.roofline_ns else self.bound


class _Device:
    """One device in the part of the run that counts."""

    def __init__(self, index: int, first_ns: int) -> None:
        self.index = index
        self.first_ns = self.until_ns = first_ns
        self.kernels: dict[int, array[int]] = {}  # stream -> start, end, number of the cause, one after the other
        self.collectives: dict[int, array[int]] = {}  # stream -> start, end
        self.copies: dict[int, array[int]] = {}
        self.gaps: Counter[str] = Counter()
        self.waited_ns = self.worked_ns = self.once_ns = 0
        self.matrix_ns = self.tensor_core_ns = 0

    def forget(self) -> None:
        """Begin anew here."""
        self.__init__(self.index, self.until_ns)  # type: ignore[misc]

    def follow(self, start_ns: int, end_ns: int) -> None:
        """Sort the gap before an operation, by what the host did since the one before."""
        gap = start_ns - self.until_ns
        if gap > 0:
            wait = min(gap, self.waited_ns)
            once = min(gap - wait, self.once_ns)
            rest = gap - wait - once
            known = min(rest, self.worked_ns)
            self.gaps["wait"] += wait
            self.gaps["first use"] += once
            self.gaps["input"] += rest if rest > LAUNCH_GAP_NS else known
            self.gaps["launch"] += 0 if rest > LAUNCH_GAP_NS else rest - known
        self.waited_ns = self.worked_ns = self.once_ns = 0
        self.until_ns = max(self.until_ns, end_ns)

    def split(self, begin_ns: int | None, end_ns: int | None) -> Split:
        """The window by cause, whose parts sum up to it."""
        begin = self.first_ns if begin_ns is None else begin_ns
        end = max(self.until_ns, end_ns or 0)
        split = Split(self.index, end - begin, causes=dict.fromkeys(CAUSES, 0))
        causes = [0] * len(ORDERED)
        until = begin
        for start, stop, number in _kernels(self.kernels):
            causes[number] += max(0, stop - max(start, until))
            until = max(until, stop)
        for number, cause in enumerate(ORDERED):
            split.causes[cause] += causes[number]
        busy = _flat(union((start, stop) for start, stop, _ in _kernels(self.kernels)))
        for cause, lanes in (("communication", self.collectives), ("copy", self.copies)):
            spans = _flat(union(merge(*map(_spans, lanes.values()))))
            total, hidden = sum(stop - start for start, stop in _spans(spans)), overlap(_spans(spans), _spans(busy))
            split.moved_ns += total
            split.hidden_ns += hidden
            split.causes[cause] += total - hidden
            if spans:
                busy = _flat(union(merge(_spans(busy), _spans(spans))))
        split.busy_ns = min(split.window_ns, sum(stop - start for start, stop in _spans(busy)))
        _share_out(split.causes, self.gaps, split.window_ns - split.busy_ns)
        split.matrix_ns, split.tensor_core_ns = self.matrix_ns, self.tensor_core_ns
        return split


def _kernels(lanes: Mapping[int, array[int]]) -> Iterator[tuple[int, int, int]]:
    """The kernels of all streams in order: start, end and number of the cause."""
    return merge(*(zip(*([iter(numbers)] * 3), strict=True) for numbers in lanes.values()))


def _spans(numbers: array[int]) -> Iterator[Span]:
    """Spans that lie one after the other."""
    return zip(*([iter(numbers)] * 2), strict=True)


def _flat(spans: Iterable[Span]) -> array[int]:
    """Spans one after the other: of millions, 16 bytes each."""
    return array("q", chain.from_iterable(spans))


class _Part:
    """The rows of the part of a run that counts, sorted as they come."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.gpus = trace.facts.get("gpus", [])
        self.devices: dict[int, _Device] = {}
        self.began_ns: int | None = None
        self.until_ns = 0
        self.first_uses: list[tuple[str, int]] = []
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self._sums: dict[tuple[int, int], list[int]] = {}

    def forget(self) -> None:
        """Begin anew here, but keep what happened once."""
        self._sums.clear()
        for device in self.devices.values():
            device.forget()

    def take(self, row: tuple[int, ...]) -> None:
        """Take notice of one row."""
        kind, lane_number, number, _, issued, start, end, value = row
        if kind == Kind.SYNCHRONIZE or kind == Kind.HOST or kind == Kind.QUEUE:
            self._host(kind, number, end - start)
            return
        if kind > Kind.COLLECTIVE:
            return
        lane = self.trace.lanes[lane_number]
        device = self.devices.get(lane.device)
        if device is None:
            device = self.devices[lane.device] = _Device(lane.device, start)
        if self.began_ns is None:
            self.began_ns = issued
        self.until_ns = max(self.until_ns, end)
        device.follow(start, end)
        if kind == Kind.KERNEL:
            kernel = self._kernel(device, number, value, end - start)
            spans = device.kernels.get(lane.stream)
            if spans is None:
                spans = device.kernels[lane.stream] = array("q")
            spans.extend((start, end, NUMBERS[kernel.cause(end - start)]))
        else:
            lanes = device.copies if kind == Kind.COPY else device.collectives
            lanes.setdefault(lane.stream, array("q")).extend((start, end))

    def _host(self, kind: int, number: int, duration_ns: int) -> None:
        name = self.trace.signatures[number].name
        once = kind == Kind.HOST and name.startswith(FIRST_USE)
        if once:
            self.first_uses.append((name.removeprefix(FIRST_USE), duration_ns))
        for device in self.devices.values():
            if once:
                device.once_ns += duration_ns
            elif kind == Kind.HOST:
                device.worked_ns += duration_ns
            else:
                device.waited_ns += duration_ns

    def _kernel(self, device: _Device, number: int, size_bytes: int, duration_ns: int) -> Kernel:
        key = device.index, number
        kernel = self._kernels.get(key)
        if kernel is None:
            gpu = self.gpus[device.index] if device.index < len(self.gpus) else {}
            kernel = self._kernels[key] = Kernel(self.trace.signatures[number], size_bytes, gpu)
        if kernel.matrix:
            device.matrix_ns += duration_ns
            device.tensor_core_ns += duration_ns if kernel.tensor_cores else 0
        sums = self._sums.setdefault(key, [0, 0])
        sums[0] += 1
        sums[1] += duration_ns
        return kernel

    def operators(self) -> list[Operator]:
        """Each device's operators by the time that they took; `share` is of the time of all its kernels."""
        found: dict[tuple[int, str], Operator] = {}
        for key, (times, duration_ns) in self._sums.items():
            kernel, name = self._kernels[key], self.trace.signatures[key[1]].name
            one = found.setdefault((key[0], name), Operator(key[0], name))
            if duration_ns > one.duration_ns / 2:
                one.bound = kernel.cause(duration_ns // times)
            one.times += times
            one.duration_ns += duration_ns
            one.roofline_ns += kernel.roofline_ns * times
        totals: Counter[int] = Counter()
        for one in found.values():
            totals[one.device] += one.duration_ns
        shown: Counter[int] = Counter()
        ranked = []
        for one in sorted(found.values(), key=lambda one: (-one.duration_ns, one.device, one.name)):
            one.share = one.duration_ns / totals[one.device] if totals[one.device] else 0.0
            shown[one.device] += 1
            if shown[one.device] <= TOP:
                ranked.append(one)
        return ranked


# ---------------------------------------------------------------------- in words


def step_words(timing: Timing, band: float | None) -> str:
    """The step in one phrase: "93.1 ms (84.0 ms to 102 ms), 10.7 a second; ..."; empty with fewer than two steps."""
    if timing.step_ns is None or timing.steps_per_s is None:
        return ""
    words = format_ns(timing.step_ns)
    if (span := timing.step_range_ns(band)) is not None:
        words += f" ({format_ns(span[0])} to {format_ns(span[1])})"
    words += f", {_rate(timing.steps_per_s)} a second; median of {plural(timing.steps - 1, 'step')}"
    if timing.steps >= SKIPPED_STEPS and timing.first_step_ns is not None:
        words += f" after the first ({format_ns(timing.first_step_ns)})"
    return words


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def first_use_words(timing: Timing) -> str:
    """What the host did once, the longest first: "context 250 ms, cuBLAS 30.0 ms"."""
    sums: Counter[str] = Counter()
    for name, duration_ns in timing.first_uses:
        sums["kernels" if name.startswith("kernels of ") else name] += duration_ns
    return ", ".join(f"{name} {format_ns(duration_ns)}" for name, duration_ns in sums.most_common())


def split_words(split: Split) -> str:
    """A device's time by cause: "compute 61 %, memory 20 %, wait 8 %"; nothing for what never happened."""
    ranked = sorted(split.causes.items(), key=lambda item: -item[1])
    shown = [(cause, spent / split.window_ns) for cause, spent in ranked if split.window_ns and spent]
    return ", ".join(f"{cause} {format_share(share)}" for cause, share in shown if share >= 0.001)


def use_words(split: Split) -> str:
    """How well it was used: "tensor cores 96 % of matrix work, 40 % of copies and collectives hidden"."""
    words = []
    if split.matrix_ns and split.tensor_cores:
        words.append(f"tensor cores did {format_share(split.tensor_core_ns / split.matrix_ns)} of the matrix work")
    if split.moved_ns:
        words.append(
            f"{format_share(split.hidden_ns / split.moved_ns)} of copies and collectives hidden behind kernels"
        )
    return ", ".join(words)


def operator_words(operator: Operator) -> str:
    """One operator in a phrase: "aten::mm 40 % (compute, at 71 % of its roofline)"."""
    at = "" if operator.roofline is None else f", at {format_share(min(1.0, operator.roofline))} of its roofline"
    return f"{operator.name} {format_share(operator.share)} ({operator.bound}{at})"


# ---------------------------------------------------------------------- intervals


def union(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in order of their starts as spans that do not touch."""
    first: int | None = None
    until = 0
    for start, stop in spans:
        if first is None:
            first, until = start, stop
        elif start > until:
            yield first, until
            first, until = start, stop
        else:
            until = max(until, stop)
    if first is not None:
        yield first, until


def overlap(some: Iterable[Span], others: Iterable[Span]) -> int:
    """How long both of two series of spans, each in order and apart, hold at once."""
    total = 0
    some, others = iter(some), iter(others)
    one, other = next(some, None), next(others, None)
    while one is not None and other is not None:
        total += max(0, min(one[1], other[1]) - max(one[0], other[0]))
        if one[1] <= other[1]:
            one = next(some, None)
        else:
            other = next(others, None)
    return total


def _share_out(causes: dict[str, int], gaps: Counter[str], idle_ns: int) -> None:
    """Give the idle time to the causes of gaps, in proportion to what was seen of each."""
    seen = sum(gaps.values())
    rest = idle_ns
    for cause in ("wait", "first use", "input"):
        part = round(idle_ns * gaps[cause] / seen) if seen else 0
        causes[cause] += part
        rest -= part
    causes["launch"] += rest
