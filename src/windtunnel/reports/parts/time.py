"""Where the time went: the steady step, each moment of a device by its cause, and the operators with most of it.

With three steps or more the first is left out: it holds what happens once (the CUDA context, libraries, allocations).
A step ends where the device has done what was asked of it before `optimizer.step()` returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.trace import roofline
from windtunnel.trace.blocks import Block, KernelTimes, blocks
from windtunnel.trace.columns import Numbers, Truths, distinct, highest, since, sums
from windtunnel.trace.operation import FIRST_USE, LAUNCH_GAP_NS, Kind, Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import far_words, format_ns, format_share, plural

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
PART = 1 << 16  # operations that are sorted out together
FOREVER_NS = 1 << 62

Span = tuple[int, int]
Part = tuple[Numbers, Numbers, NDArray[np.int8]]


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
class RunTiming:
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
        host = 0.0 if self.host_band[0] == self.host_band[1] else self.host_share
        low, high = with_hosts(band, host, self.host_band)
        return round(self.step_ns * low), round(self.step_ns * high)

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


def with_hosts(band: float, host_share: float, host_band: tuple[float, float]) -> tuple[float, float]:
    """Between which factors a time lies of which kernels, with their `band`, leave the host so much."""
    low, high = host_band
    return (1 - host_share) * (1 - band) + host_share * low, (1 - host_share) * (1 + band) + host_share * high


def measure(trace: Trace) -> RunTiming:
    """The timing of a run, in one pass over its rows."""
    ends = trace.rows.column(0).count(Kind.STEP)
    part = _Part(trace)
    done: list[int] = []
    skip = ends >= SKIPPED_STEPS
    begin: int | None = None
    for block in blocks(trace):
        places = np.flatnonzero(block.kind == Kind.STEP)
        until = highest(np.where(block.on_device, block.end, 0), part.until_ns)
        done += until[places].tolist() if len(done) < ends else []
        from_row = 0
        if skip and begin is None and len(places):
            from_row = int(places[0])
            part.take(block, np.arange(len(block)) < from_row)
            part.forget()
            begin = done[0]
        which = np.arange(len(block)) >= from_row
        if begin is not None and len(done) == ends:
            # Rows of other processes follow all of the first one's, and so do not tell its steps.
            after = np.arange(len(block)) > (places[-1] if len(places) else -1)
            which &= ~after | ((block.start >= begin) & (block.end <= done[-1]))
        part.take(block, which)
    lengths = [later - earlier for earlier, later in pairwise(done)]
    timing = RunTiming(len(done), int(median(lengths)) if lengths else None)
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
        self.kernels, self.collectives, self.copies = Spans(), Spans(), Spans()
        self.gaps: Counter[str] = Counter()
        self.waited_ns = self.worked_ns = self.once_ns = 0
        self.matrix_ns = self.tensor_core_ns = 0

    def forget(self) -> None:
        """Begin anew here."""
        self.__init__(self.index, self.until_ns)  # type: ignore[misc]

    def follow(self, start: Numbers, end: Numbers, work: Numbers, host: _Host) -> None:
        """Sort the gap before each operation by what the host did since the one before; `work` are their rows."""
        gaps = np.maximum(0, start - highest(end, self.until_ns))
        waited = since(host.waited, work, self.waited_ns)
        once = since(host.once, work, self.once_ns)
        worked = since(host.worked, work, self.worked_ns)
        wait = np.minimum(gaps, waited)
        first_use = np.minimum(gaps - wait, once)
        rest = gaps - wait - first_use
        known = np.minimum(rest, worked)
        pause = rest > LAUNCH_GAP_NS
        self.gaps["wait"] += int(wait.sum())
        self.gaps["first use"] += int(first_use.sum())
        self.gaps["input"] += int(np.where(pause, rest, known).sum())
        self.gaps["launch"] += int(np.where(pause, 0, rest - known).sum())
        self.waited_ns, self.once_ns, self.worked_ns = (-int(total[work[-1]]) for total in host)
        self.until_ns = max(self.until_ns, int(end.max()))

    def split(self, begin_ns: int | None, end_ns: int | None) -> Split:
        """The window by cause, whose parts sum up to it."""
        begin = self.first_ns if begin_ns is None else begin_ns
        end = max(self.until_ns, end_ns or 0)
        split = Split(self.index, end - begin, causes=dict.fromkeys(CAUSES, 0))
        others = {
            "communication": union(*self.collectives.ordered()[:2]),
            "copy": union(*self.copies.ordered()[:2]),
        }
        split.moved_ns = sum(int((spans[1] - spans[0]).sum()) for spans in others.values())
        until = 0
        for (start, stop, number), (from_ns, to_ns) in self.kernels.windows():
            alone = np.maximum(0, stop - np.maximum(start, highest(stop, max(begin, until))))
            for cause, ns in zip(ORDERED, sums(number.astype(np.int64), alone, len(ORDERED)), strict=True):
                split.causes[cause] += ns
            busy = within(union(np.append(from_ns, start), np.append(max(from_ns, until), stop)), from_ns, to_ns)
            until = max(until, int(stop.max(initial=until)))
            for cause, spans in others.items():
                own = within(spans, from_ns, to_ns)
                total, hidden = int((own[1] - own[0]).sum()), overlap(own, busy)
                split.hidden_ns += hidden
                split.causes[cause] += total - hidden
                if own.size:
                    both = np.concatenate([busy, own], axis=1)
                    busy = union(*both[:, np.argsort(both[0], kind="stable")])
            split.busy_ns += int((busy[1] - busy[0]).sum())
        split.busy_ns = min(split.window_ns, split.busy_ns)
        _share_out(split.causes, self.gaps, split.window_ns - split.busy_ns)
        split.matrix_ns, split.tensor_core_ns = self.matrix_ns, self.tensor_core_ns
        return split


class Spans:
    """When operations of one kind began and ended, of kernels with the number of the cause: 17 bytes each."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def add(self, start: Numbers, stop: Numbers, number: Numbers | None = None) -> None:
        """Add some."""
        of = np.zeros(len(start), dtype=np.int8) if number is None else number.astype(np.int8)
        self._parts.append((start, stop, of))

    def ordered(self) -> Part:
        """All by their starts."""
        if not self._parts:
            nothing = np.empty(0, dtype=np.int64)
            return nothing, nothing, nothing.astype(np.int8)
        start, stop, number = (np.concatenate(one) for one in zip(*self._parts, strict=True))
        if (np.diff(start) < 0).any():
            order = np.lexsort((number, stop, start))
            start, stop, number = start[order], stop[order], number[order]
        return start, stop, number

    def windows(self) -> Iterator[tuple[Part, Span]]:
        """All by their starts, a part at a time, with the stretch of time until the next part begins."""
        parts = [part for part in self._parts if len(part[0])]
        in_order = all((np.diff(start) >= 0).all() for start, _, _ in parts)
        if not in_order or any(later[0][0] < former[0][-1] for former, later in pairwise(parts)):
            start, stop, number = self.ordered()
            stretches = [slice(at, at + PART) for at in range(0, len(start), PART)]
            parts = [(start[one], stop[one], number[one]) for one in stretches]
        begins = [0, *(int(start[0]) for start, _, _ in parts[1:]), FOREVER_NS]
        yield from zip(parts or [self.ordered()], pairwise(begins), strict=True)


class _Host(NamedTuple):
    """What the host did until each row of a block, in nanoseconds: waits, what happens once, work that is known."""

    waited: Numbers
    once: Numbers
    worked: Numbers


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
        self._times = KernelTimes()

    def forget(self) -> None:
        """Begin anew here, but keep what happened once."""
        self._times = KernelTimes()
        for device in self.devices.values():
            device.forget()

    def take(self, block: Block, which: Truths) -> None:
        """Take notice of some of a block's rows."""
        work = np.flatnonzero(block.on_device & which)
        host = self._host(block, which)
        if len(work):
            if self.began_ns is None:
                self.began_ns = int(block.issued[work[0]])
            self.until_ns = max(self.until_ns, int(block.end[work].max()))
        for index in distinct(block.device[work])[0]:
            rows = work[block.device[work] == index]
            device = self.devices.get(index)
            if device is None:
                device = self.devices[index] = _Device(index, int(block.start[rows[0]]))
                device.waited_ns, device.once_ns, device.worked_ns = (-int(total[rows[0]]) for total in host)
            device.follow(block.start[rows], block.end[rows], rows, host)
            self._kernel_rows(device, block, rows[block.kind[rows] == Kind.KERNEL])
            for kind, spans in ((Kind.COPY, device.copies), (Kind.COLLECTIVE, device.collectives)):
                of = rows[block.kind[rows] == kind]
                if len(of):
                    spans.add(block.start[of], block.end[of])
        for device in self.devices.values():
            device.waited_ns += int(host.waited[-1])
            device.once_ns += int(host.once[-1])
            device.worked_ns += int(host.worked[-1])
        self._times.see(block, which & (block.kind == Kind.KERNEL))

    def _host(self, block: Block, which: Truths) -> _Host:
        names = [one.name for one in self.trace.signatures]
        first = np.array([name.startswith(FIRST_USE) for name in names], dtype=bool)[block.signature]
        host = which & (block.kind == Kind.HOST)
        for number, ns in zip(
            block.signature[host & first].tolist(), block.duration[host & first].tolist(), strict=True
        ):
            self.first_uses.append((names[number].removeprefix(FIRST_USE), ns))
        waits = which & ((block.kind == Kind.SYNCHRONIZE) | (block.kind == Kind.QUEUE))
        return _Host(*(np.cumsum(np.where(one, block.duration, 0)) for one in (waits, host & first, host & ~first)))

    def _kernel_rows(self, device: _Device, block: Block, rows: Numbers) -> None:
        """Take a device's kernels, each by what it was bound by."""
        if not len(rows):
            return
        numbers, place = distinct(block.signature[rows])
        kernels = [self._kernel(device, number, block, rows) for number in numbers]
        duration = block.duration[rows]
        roofline_ns = np.array([kernel.roofline_ns for kernel in kernels], dtype=np.float64)[place]
        chain = np.array([kernel.chain for kernel in kernels])[place]
        bound = np.array([NUMBERS[kernel.bound] for kernel in kernels])[place]
        small = (chain | (duration < SMALL_NS)) & (SMALL_SHARE * roofline_ns < duration) & (roofline_ns != 0)
        device.kernels.add(block.start[rows], block.end[rows], np.where(small, NUMBERS[SMALL], bound))
        for kernel, ns in zip(kernels, sums(place, duration, len(kernels)), strict=True):
            device.matrix_ns += ns if kernel.matrix else 0
            device.tensor_core_ns += ns if kernel.matrix and kernel.tensor_cores else 0

    def _kernel(self, device: _Device, number: int, block: Block, rows: Numbers) -> Kernel:
        """The kernel of a signature, whose first run is among these rows where it is not known."""
        key = device.index, number
        kernel = self._kernels.get(key)
        if kernel is None:
            gpu = self.gpus[device.index] if device.index < len(self.gpus) else {}
            size_bytes = int(block.value[rows[(block.signature[rows] == number).argmax()]])
            kernel = self._kernels[key] = Kernel(self.trace.signatures[number], size_bytes, gpu)
        return kernel

    def operators(self) -> list[Operator]:
        """Each device's operators by the time that they took; `share` is of the time of all its kernels."""
        found: dict[tuple[int, str], Operator] = {}
        for key, (times, duration_ns, _) in self._times.sums.items():
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


def step_words(timing: RunTiming, band: float | None) -> str:
    """The step in one phrase: "93.1 ms (84.0 ms to 102 ms), 10.7 a second; ..."; empty with fewer than two steps.

    Where nothing was measured near its kernels, it says so.
    """
    if timing.step_ns is None or timing.steps_per_s is None:
        return ""
    words = format_ns(timing.step_ns)
    if (span := timing.step_range_ns(band)) is not None:
        far = far_words(band)
        words += f" ({format_ns(span[0])} to {format_ns(span[1])}{f'; {far}' if far else ''})"
    words += f", {_rate(timing.steps_per_s)} a second; median of {plural(timing.steps - 1, 'step')}"
    if timing.steps >= SKIPPED_STEPS and timing.first_step_ns is not None:
        words += f" after the first ({format_ns(timing.first_step_ns)})"
    return words


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def first_use_words(timing: RunTiming) -> str:
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


def union(start: Numbers, stop: Numbers) -> Numbers:
    """Spans in order of their starts as spans that do not touch: starts and ends, an array each."""
    if not len(start):
        return np.empty((2, 0), dtype=np.int64)
    begins = np.concatenate([[True], start[1:] > np.maximum.accumulate(stop)[:-1]])
    return np.array([start[begins], np.maximum.reduceat(stop, np.flatnonzero(begins))])


def overlap(some: Numbers, others: Numbers) -> int:
    """How long both of two series of spans, each in order and apart, hold at once."""
    if not some.size or not others.size:
        return 0
    before = np.concatenate([[0], np.cumsum(others[1] - others[0])])

    def until(time: Numbers) -> Numbers:
        place = np.searchsorted(others[0], time)
        return before[place] - np.where(place > 0, np.maximum(0, others[1][place - 1] - time), 0)

    return int((until(some[1]) - until(some[0])).sum())


def within(spans: Numbers, from_ns: int, to_ns: int) -> Numbers:
    """Spans in order and apart, as far as they lie in a stretch of time."""
    first, last = np.searchsorted(spans[1], from_ns, side="right"), np.searchsorted(spans[0], to_ns)
    return np.clip(spans[:, first:last], from_ns, to_ns)


def _share_out(causes: dict[str, int], gaps: Counter[str], idle_ns: int) -> None:
    """Give the idle time to the causes of gaps, in proportion to what was seen of each."""
    seen = sum(gaps.values())
    rest = idle_ns
    for cause in ("wait", "first use", "input"):
        part = round(idle_ns * gaps[cause] / seen) if seen else 0
        causes[cause] += part
        rest -= part
    causes["launch"] += rest
