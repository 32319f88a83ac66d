"""The result of one rehearsal: memory, time, throughput and what limits it, as plain numbers to store and send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from windtunnel.reports.parts import job, throughput
from windtunnel.reports.parts.time import measure as measure_time
from windtunnel.trace import roofline
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace

RAN, NO_MEMORY, REFUSED, FAILED = "ran", "out of memory", "refused", "failed"


@dataclass(frozen=True)
class DeviceNeed:
    """The memory demand on one GPU at its peak, summed over its processes; sizes in bytes.

    `band` is relative to `allocated_bytes`; `at_most_bytes` exceeds that if some kernel's workspace is not known
    exactly.
    """

    memory_bytes: int
    context_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    at_most_bytes: int
    band: float
    retries: int = 0

    @property
    def upper_bytes(self) -> int:
        """The upper end of the need's band: the context and what is allocated."""
        return self.context_bytes + max(self.at_most_bytes, round(self.allocated_bytes * (1 + self.band)))

    @property
    def needed_bytes(self) -> int:
        """The minimum: the context and what is allocated at the same time."""
        return self.context_bytes + self.allocated_bytes

    @property
    def taken_bytes(self) -> int:
        """What it takes if there is room: the context and what the caching allocator reserves."""
        return self.context_bytes + self.reserved_bytes

    def on(self, memory_bytes: int) -> DeviceNeed:
        """The same need on a GPU with that much memory."""
        return replace(self, memory_bytes=memory_bytes)


@dataclass(frozen=True)
class Measurement:
    """The numbers of one rehearsal. Times are in nanoseconds; for several ranks, those of the slowest.

    `status` is "ran", "out of memory", "refused" (the emulation cannot do it) or "failed" (the program's own error),
    and `message` says why it did not run. `devices` are the GPUs that were used, in the machine's order. `samples` and
    `tokens` are those of one step of all ranks, None if unknown; ranks whose loaders give the same batches are counted
    once. `mfu` is the time that the step's floating-point operations would take at the peak of their precisions,
    divided by the step's time. `asked` are the facts that the program queried and that differ between GPUs of one
    architecture; `streams` is the largest number of streams on a device. `seconds` is what the rehearsal took on this
    machine, and `resident_bytes` the memory of its largest process.
    """

    status: str
    message: str = ""
    devices: tuple[DeviceNeed, ...] = ()
    processes: int = 0
    steps: int = 0
    step_ns: int | None = None
    first_step_ns: int | None = None
    band: float | None = None
    samples: float | None = None
    tokens: float | None = None
    samples_from: str = ""
    mfu: float | None = None
    limit: str = ""
    causes: dict[str, float] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    streams: int = 1
    assumed: int = 0
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    resident_bytes: int = 0

    def to_json(self) -> Json:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Measurement:
        """The inverse of `to_json`."""
        devices = tuple(DeviceNeed(**device) for device in data["devices"])
        lists = {name: tuple(data[name]) for name in ("asked", "files")}
        return cls(**{**data, **lists, "devices": devices})


def measure(traces: Sequence[Trace], ranks: int | None = None) -> Measurement:
    """The numbers of a successful rehearsal, from the traces of its processes that used a GPU.

    Of a cluster with so many `ranks` the traces are of those that stand for others. It gets as many batches as its
    samplers have replicas or, if it has no samplers, as it has ranks.
    """
    timings = [measure_time(trace) for trace in traces]
    slowest = max(range(len(traces)), key=lambda index: timings[index].step_ns or 0)
    timing, trace = timings[slowest], traces[slowest]
    split = max(timing.splits, key=lambda one: one.window_ns, default=None)
    causes = {}
    if split is not None and split.window_ns:
        causes = {cause: round(spent / split.window_ns, 4) for cause, spent in split.causes.items() if spent}
    feeding = _feeding(traces)
    samples = [throughput.measure(one) for one in feeding]
    numbers = [one.number for one in samples if one is not None]
    whole = len(numbers) == len(feeding)
    first = samples[0]
    tokens = [throughput.tokens(one) for one in feeding]
    band = trace.facts.get("band")
    if ranks is not None and timing.step_ns:
        known = job.step_range(trace, timing.step_ns, timing.steps, ranks)
        band = None if known is None else max(1 - known.least, known.most - 1)
    times = 1.0 if ranks is None else trace.facts.get("replicas", ranks) / len(feeding)
    return Measurement(
        RAN,
        devices=_devices(traces),
        processes=ranks or len(traces),
        steps=timing.steps,
        step_ns=timing.step_ns,
        first_step_ns=timing.first_step_ns,
        band=band,
        samples=sum(numbers) * times if whole else None,
        tokens=sum(one for one in tokens if one) * times if all(tokens) else None,
        samples_from="" if first is None or not whole else ("loader" if first.loader else "copies"),
        mfu=_mfu(trace),
        limit=max(causes, key=lambda cause: causes[cause], default=""),
        causes=causes,
        asked=tuple(sorted({fact for one in traces for device in _totals(one) for fact in device.get("asked", ())})),
        streams=max((_streams(one) for one in traces), default=1),
        assumed=sum(note.code == "assumed-value" for one in traces for note in one.notes),
        files=tuple(sorted({file for one in traces for file in one.facts.get("program_files", ())})),
    )


def _feeding(traces: Sequence[Trace]) -> list[Trace]:
    """One rank of each set with the same batches (ranks between which a model is split), and every other rank."""
    found = {str(trace.facts.get("batches", number)): trace for number, trace in reversed(list(enumerate(traces)))}
    return list(reversed(found.values()))


def _totals(trace: Trace) -> list[Json]:
    return list(trace.facts.get("devices", ()))


def _devices(traces: Sequence[Trace]) -> tuple[DeviceNeed, ...]:
    """The needs of the machine's GPUs, each summed over its processes."""
    needs: dict[int, DeviceNeed] = {}
    for trace in traces:
        for index, total in enumerate(_totals(trace)):
            if not total["context_bytes"]:
                continue
            number = int(total.get("physical", index))
            allocated = total["peak_allocated_bytes"]
            one = DeviceNeed(
                total["memory_bytes"],
                total["context_bytes"],
                allocated,
                total["peak_reserved_bytes"],
                total.get("peak_at_most_bytes") or allocated,
                total.get("peak_band") or 0.0,
                total.get("retries", 0),
            )
            known = needs.get(number)
            needs[number] = one if known is None else _added(known, one)
    return tuple(need for _, need in sorted(needs.items()))


def _added(one: DeviceNeed, other: DeviceNeed) -> DeviceNeed:
    return DeviceNeed(
        one.memory_bytes,
        one.context_bytes + other.context_bytes,
        one.allocated_bytes + other.allocated_bytes,
        one.reserved_bytes + other.reserved_bytes,
        one.at_most_bytes + other.at_most_bytes,
        max(one.band, other.band),
        one.retries + other.retries,
    )


def _streams(trace: Trace) -> int:
    counts = Counter(device for device, _ in {(lane.device, lane.stream) for lane in trace.lanes if lane.device >= 0})
    return max(counts.values(), default=1)


def _mfu(trace: Trace) -> float | None:
    """The share of the steady steps that their operations would take at the GPU's peak; None if unknown."""
    ends = [row[6] for row in trace.rows if row[0] == Kind.STEP]
    gpus = trace.facts.get("gpus", [])
    if len(ends) < 2 or not gpus:
        return None
    ideal: Counter[int] = Counter()
    per_kernel: dict[tuple[int, int], float] = {}
    begin: int | None = None
    until = steps = 0
    for kind, lane_number, number, _, _, _, end, _ in trace.rows:
        if kind == Kind.STEP:
            steps += 1
            begin = until if begin is None else begin
            if steps == len(ends):
                break
        elif kind == Kind.KERNEL:
            device = trace.lanes[lane_number].device
            key = device, number
            if key not in per_kernel:
                per_kernel[key] = _at_peak_ns(trace, number, gpus[min(device, len(gpus) - 1)])
            if begin is not None:
                ideal[device] += round(per_kernel[key])
        if kind <= Kind.COLLECTIVE:
            until = max(until, end)
    window = until - (begin or 0)
    return max(ideal.values(), default=0) / window if window > 0 else None


def _at_peak_ns(trace: Trace, number: int, gpu: Json) -> float:
    signature = trace.signatures[number]
    if not signature.flops:
        return 0.0
    peaks = gpu.get("peak_flops") or {}
    dtype = signature.dtypes[0] if signature.dtypes else "float32"
    peak = peaks.get(roofline.precision(dtype, ("tf32", 1) in signature.detail, peaks)) or peaks.get("fp32")
    return roofline.times_ns(signature.flops, 0.0, peak or 0.0, 0.0)[0]
