"""The plain numbers of a run, computed once for every format: verdict, per-device totals, steps, waits and copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from windtunnel.checks.not_modelled import uncompiled
from windtunnel.reports.parts import compiled, host, throughput
from windtunnel.reports.parts.compiled import Compiled
from windtunnel.reports.parts.host import HostWork
from windtunnel.reports.parts.peak import Peak, peaks
from windtunnel.reports.parts.throughput import Samples
from windtunnel.reports.parts.time import RunTiming, measure
from windtunnel.trace.blocks import Block, blocks
from windtunnel.trace.columns import distinct
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_GPU, Kind, Site, written
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, plural


@dataclass
class Waits:
    """The synchronizations of one device that one source line caused."""

    site: Site
    name: str
    times: int = 0
    wait_ns: int = 0


@dataclass
class Transfers:
    """The copies of one direction that one source line asked for."""

    site: Site
    name: str
    times: int = 0
    size_bytes: int = 0
    duration_ns: int = 0


@dataclass
class DeviceTotals:
    """One device's totals. Memory is None where the trace does not say."""

    index: int
    name: str = UNKNOWN_GPU
    place: str = ""  # how a person finds it: by its number, and of several nodes that of its node
    memory_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_at_most_bytes: int | None = None  # more than the peak where what some kernel takes is not sure
    peak_unsure: str = ""  # the operator whose kernel that is
    peak_band: float | None = None  # relative, of a modelled peak
    modelled: bool = True
    kernels: int = 0
    kernel_ns: int = 0
    copies: int = 0
    copied_bytes: int = 0
    collectives: int = 0
    busy_share: float = 0.0  # of its window in `timing`: the steady steps, or all its time where there are too few
    synchronizations: int = 0
    wait_ns: int = 0
    waits: dict[tuple[str, int, str], Waits] = field(default_factory=dict)
    transfers: dict[tuple[str, int, str], Transfers] = field(default_factory=dict)
    peak: Peak | None = None  # what held the memory; None unless the history was kept

    def __post_init__(self) -> None:
        self.place = self.place or f"cuda:{self.index}"

    @property
    def used(self) -> bool:
        """Whether the program asked anything of it."""
        held = self.peak_allocated_bytes or (self.peak is not None and self.peak.allocated_bytes)
        return bool(self.kernels or self.copies or self.collectives or held)


@dataclass(slots=True)
class OptimizerStep:
    """One optimizer step: from the end of the one before (or the first device work) to its own end."""

    number: int
    start_ns: int
    end_ns: int
    kernels: int = 0
    kernel_ns: int = 0
    copied_bytes: int = 0
    synchronizations: int = 0


@dataclass
class Summary:
    """What every report says first, and the tables below it."""

    verdict: str
    why: str
    next: str
    emulated: bool
    source: str
    band: float | None
    begin_ns: int
    end_ns: int
    operations: int
    program: str
    devices: list[DeviceTotals]
    steps: list[OptimizerStep]
    findings: list[Finding]
    timing: RunTiming
    not_decidable: tuple[str, ...] = ()  # checks that this trace holds too little for
    samples: Samples | None = None
    processes: int = 1
    nodes: int = 1
    compiled: Compiled | None = None
    host_factor: float | None = None  # by what the host's own time was multiplied where it was measured
    jit: str = ""  # what compiled JAX's functions
    job: dict[str, str] = field(default_factory=dict)  # of a cluster that few processes play, lines by their labels
    ranks: int = 1
    host: HostWork | None = None  # the host's own work, where it was measured and is worth a word
    between: str = ""  # the network's name
    network_assumed: bool = False
    network_band: tuple[float, float] | None = None

    @property
    def stamp(self) -> str:
        """EMULATED or MEASURED: what every page of a report carries."""
        return "EMULATED" if self.emulated else "MEASURED"

    @property
    def network(self) -> str:
        """What connects the nodes, and how well that is known; empty of one node."""
        if self.nodes == 1 or not self.between:
            return ""
        given = ", assumed (--network names another)" if self.network_assumed else ""
        words = f"{self.nodes} nodes, {self.between}{given}"
        if self.network_band is None:
            return words
        low, high = self.network_band
        return f"{words}; between nodes four of five collectives take {low:.2f} to {high:.2f} of these times"

    @property
    def worked(self) -> bool:
        """Whether any work on a device was recorded."""
        return self.end_ns > self.begin_ns

    @property
    def throughput(self) -> str:
        """Samples a second and what says so, in one phrase; empty where the batch is not known."""
        if self.samples is None:
            return ""
        processes = self.ranks if self.job else self.processes
        return self.samples.words(self.timing.step_ns, short(self.samples.site), processes)

    @property
    def of_window(self) -> str:
        """What all shares of a device's time are of."""
        return self.timing.of_window

    @property
    def silent_checks(self) -> str:
        """What could not be judged, in one sentence; empty for an emulated run, where everything can be."""
        if not self.not_decidable:
            return ""
        if not self.worked:
            return "a snapshot holds no work, so only its memory is judged"
        return f"not decidable from a profile: {', '.join(self.not_decidable)}"

    @property
    def times_are(self) -> str:
        """Where the durations come from, with their error band where it is known."""
        if self.not_decidable and not self.worked:
            return "what the allocator recorded"
        if not self.emulated:
            return f"times are {self.source}"
        words = f"times are {self.source}"
        words += (
            f", within about ±{format_share(self.band)}" if self.band is not None else "; their error band is not known"
        )
        if self.host_factor is not None:
            words += f"; the host's own work was measured on this machine, times {self.host_factor:g}"
        return words


def summarize(trace: Trace, findings: Sequence[Finding]) -> Summary:
    """Compute a run's numbers in one pass over its records; `findings` are kept in their order."""
    devices = _devices(trace.facts)
    steps = _Steps()
    begin_ns: int | None = None
    end_ns = 0
    for block in blocks(trace):
        if block.on_device.any():
            first_ns = int(block.start[block.on_device].min())
            begin_ns = first_ns if begin_ns is None else min(begin_ns, first_ns)
            end_ns = max(end_ns, int(block.end[block.on_device].max()))
        _count(devices, block)
        steps.see(block)
    for index, peak in peaks(trace).items():
        devices.setdefault(index, DeviceTotals(index)).peak = peak
    begin_ns = begin_ns or 0
    used = sorted((one for one in devices.values() if one.index >= 0), key=lambda one: one.index)
    emulated = trace.facts.get("source", "modelled") == "modelled"
    timing = measure(trace)
    _set_busy(used, timing)
    waits = sum(device.synchronizations for device in used) >= max(1, len(steps.done))
    work = host.measure(trace, timing, waits, end_ns - begin_ns)
    went = _where_time_went(used, end_ns - begin_ns, timing.of_window)
    verdict, why, advice = _verdict(trace, used, findings, went, emulated)
    if work is not None and work.is_bound and _comes_first(trace.facts, work, findings):
        verdict, why, advice = _host_verdict(verdict.partition(": ")[0], work)
    return Summary(
        _of_uncompiled(verdict, uncompiled(trace.notes)),
        why,
        advice,
        emulated,
        str(trace.facts.get("source", "modelled")),
        trace.facts.get("band"),
        begin_ns,
        end_ns,
        len(trace),
        _program(trace.facts),
        used,
        steps.done,
        list(findings),
        timing,
        tuple(trace.facts.get("not_decidable", ())),
        throughput.measure(trace),
        int(trace.facts.get("processes", 1)),
        int(trace.facts.get("nodes", 1)),
        compiled.measure(trace),
        _host_factor(trace.facts.get("options", {})),
        str(trace.facts.get("versions", {}).get("jit of JAX by", "")),
        {str(label): str(words) for label, words in trace.facts.get("job", {}).items()},
        int(trace.facts.get("world_size") or 1),
        work,
        str(trace.facts.get("network", {}).get("name", "")),
        bool(trace.facts.get("network_assumed")),
        trace.facts.get("network_band"),
    )


def _of_uncompiled(verdict: str, cure: str) -> str:
    """The verdict, after a first sentence on what `torch.compile` lacks, if that is anything."""
    place, _, rest = verdict.partition(": ")
    said = f"{place}, uncompiled: torch.compile compiled nothing here ({cure}). {rest[:1].upper()}{rest[1:]}"
    return said if cure else verdict


def _set_busy(devices: Sequence[DeviceTotals], timing: RunTiming) -> None:
    """Each device's share of its window in which it had work."""
    splits = {split.device: split for split in timing.splits if split.window_ns}
    for device in devices:
        if (split := splits.get(device.index)) is not None:
            device.busy_share = split.busy_ns / split.window_ns


def _host_verdict(place: str, work: HostWork) -> tuple[str, str, str]:
    """Verdict, why and next of a run that the host's own work bounds."""
    line = short(work.site)
    return f"{place}: {host.verdict_words(work, line)}", host.why_words(work, line), host.next_words(work)


def _comes_first(facts: Json, work: HostWork, findings: Sequence[Finding]) -> bool:
    """Whether the host's work matters more than any finding, and than how the program ended."""
    if facts.get("exit_code") or facts.get("incomplete") or facts.get("tests") is not None:
        return False
    if any(finding.severity == "error" or _is_wrong(finding) for finding in findings):
        return False
    most = max((finding.saved_share or 0.0 for finding in findings if finding.saved_of in ("step", "run")), default=0.0)
    return work.waited_share > most * work.step_ns / work.whole_ns


def _is_wrong(finding: Finding) -> bool:
    """Whether it says what is wrong, and not what is slow or large: no saving stands for it."""
    return finding.severity == "warning" and finding.saved_share is None and not finding.size_bytes


def _host_uncounted(facts: Json, emulated: bool) -> str:
    """Why the host's own work is in no figure; empty where it was measured."""
    options = facts.get("options", {})
    if not emulated or "host_work" in facts or "host_from" in facts or options.get("host_time") == "measured":
        return ""
    return NO_DATA if options.get("no_data") else ""


def _host_factor(options: Json) -> float | None:
    return float(options.get("host_factor", 1.0)) if options.get("host_time") == "measured" else None


NO_DATA = "host work is not counted without data"
SHORT = 2_000  # kernels, about 20 ms of launching
HOLDERS = 3  # lines that a verdict names
SMALL = 0.01  # of a peak: what is not worth a word
RECORD = "call `torch.cuda.memory._record_memory_history()` at the program's start: the snapshot has no history"
UNNAMED_LINES = 'the snapshot names no lines: record it with `stacks="python"`'
INTERRUPTED = (130,)  # exit codes after Ctrl-C


def activity(trace: Trace, device: int, begin_ns: int, end_ns: int, columns: int) -> list[float]:
    """How busy a device was, as a share of each of `columns` equal stretches of time."""
    width = (end_ns - begin_ns) / columns
    busy = np.zeros(columns)
    if width <= 0:
        return [0.0] * columns
    for block in blocks(trace):
        which = block.on_device & (block.device == device)
        start, stop = block.start[which] - begin_ns, block.end[which] - begin_ns
        first = np.clip((start / width).astype(np.int64), 0, columns)
        last = np.clip((stop / width).astype(np.int64), -1, columns - 1)
        within = first == last
        busy += np.bincount(first[within], (stop - start)[within], columns)
        for number in np.flatnonzero(~within).tolist():
            for column in range(int(first[number]), int(last[number]) + 1):
                left = column * width
                busy[column] += max(0.0, min(stop[number], left + width) - max(start[number], left))
    return [min(1.0, float(one) / width) for one in busy]


def _devices(facts: Json) -> dict[int, DeviceTotals]:
    devices = {}
    totals = facts.get("devices", [])
    for index, gpu in enumerate(facts.get("gpus", [])):
        device = DeviceTotals(index, str(gpu.get("name", UNKNOWN_GPU)), memory_bytes=gpu.get("memory_bytes"))
        if index < len(totals):
            if "node" in totals[index] and int(facts.get("nodes", 1)) > 1:
                device.place = f"cuda:{totals[index]['local']} of node {totals[index]['node']}"
            device.memory_bytes = totals[index].get("memory_bytes", device.memory_bytes)
            device.peak_allocated_bytes = totals[index].get("peak_allocated_bytes")
            device.peak_reserved_bytes = totals[index].get("peak_reserved_bytes")
            device.peak_at_most_bytes = totals[index].get("peak_at_most_bytes")
            device.peak_unsure = totals[index].get("peak_unsure") or ""
            device.peak_band = totals[index].get("peak_band")
        device.modelled = facts.get("source", "modelled") == "modelled"
        devices[index] = device
    return devices


def _count(devices: dict[int, DeviceTotals], block: Block) -> None:
    """Add what a block holds to each device's totals."""
    counted = block.kind <= Kind.COLLECTIVE
    counted |= block.kind == Kind.SYNCHRONIZE
    for index in distinct(block.device[counted])[0]:
        device = devices.setdefault(index, DeviceTotals(index))
        of = block.device == index
        kernels = of & (block.kind == Kind.KERNEL)
        device.kernels += int(kernels.sum())
        device.kernel_ns += int(block.duration[kernels].sum())
        device.collectives += int((of & (block.kind == Kind.COLLECTIVE)).sum())
        for record in block.records(of & ((block.kind == Kind.SYNCHRONIZE) | (block.kind == Kind.COPY))):
            _count_line(device, record)


def _count_line(device: DeviceTotals, record: Record) -> None:
    name = record.signature.name
    key = (record.site.file, record.site.line, name)
    if record.kind == Kind.SYNCHRONIZE:
        device.synchronizations += 1
        device.wait_ns += record.duration_ns
        wait = device.waits.setdefault(key, Waits(record.site, name))
        wait.times += 1
        wait.wait_ns += record.duration_ns
        return
    device.copies += 1
    device.copied_bytes += record.value
    transfer = device.transfers.setdefault(key, Transfers(record.site, name))
    transfer.times += 1
    transfer.size_bytes += record.value
    transfer.duration_ns += record.duration_ns


class _Steps:
    """The steps of a run: the first one begins with the first work."""

    def __init__(self) -> None:
        self.done: list[OptimizerStep] = []
        self._begun_ns: int | None = None
        self._left = np.zeros(4, dtype=np.int64)

    def see(self, block: Block) -> None:
        """Take notice of a block."""
        first = 0
        if self._begun_ns is None:
            if not block.on_device.any():
                return
            first = int(block.on_device.argmax())
            self._begun_ns = int(block.issued[first])
        kernels, copies = block.kind == Kind.KERNEL, block.kind == Kind.COPY
        counted = np.array([
            kernels,
            np.where(kernels, block.duration, 0),
            np.where(copies, block.value, 0),
            block.kind == Kind.SYNCHRONIZE,
        ])  # fmt: skip
        counted[:, :first] = 0
        ends = first + np.flatnonzero(block.kind[first:] == Kind.STEP)
        so_far = np.cumsum(counted, axis=1)
        each = np.diff(so_far[:, ends], axis=1, prepend=0)
        until = np.maximum(block.issued, block.end)[ends]
        if len(ends):
            each[:, 0] += self._left
            self._left = so_far[:, -1] - so_far[:, ends[-1]]
        else:
            self._left = self._left + so_far[:, -1]
        for number, end_ns, found in zip(block.value[ends].tolist(), until.tolist(), each.T.tolist(), strict=True):
            self.done.append(OptimizerStep(number, self._begun_ns, end_ns, *found))
            self._begun_ns = end_ns


def _program(facts: Json) -> str:
    program = facts.get("program", "")
    return " ".join(map(str, program)) if isinstance(program, list | tuple) else str(program)


def short(site: Site) -> str:
    """A source line with the file's path shortened to what a person needs: from the working directory down."""
    if not site.file:
        return str(site)
    file = site.file
    if os.path.isabs(file):
        relative = os.path.relpath(file)
        file = relative if not relative.startswith("..") else os.path.basename(file)
    return written(file, site.line)


def gpu_names(devices: Sequence[DeviceTotals]) -> str:
    """The devices in one phrase: "2 x Tesla V100-SXM2-16GB"."""
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.name] = counts.get(device.name, 0) + 1
    phrases = (
        f"{count} x {name}" if name != UNKNOWN_GPU else f"{plural(count, 'GPU')} of unknown model"
        for name, count in counts.items()
    )
    return ", ".join(phrases) or "no GPU"


def _verdict(
    trace: Trace, devices: list[DeviceTotals], findings: Sequence[Finding], went: str, emulated: bool
) -> tuple[str, str, str]:
    place = f"{'EMULATED' if emulated else 'MEASURED'} on {trace.facts.get('cluster') or gpu_names(devices)}"
    if uncounted := _host_uncounted(trace.facts, emulated):
        place += f" ({uncounted})"
    tests = trace.facts.get("tests")  # of a pytest run, whose devices were many and short-lived
    if tests is not None:
        place = f"{'EMULATED' if emulated else 'MEASURED'}, {plural(tests, 'test')} on GPUs"
    code = trace.facts.get("exit_code", 0)
    interrupted = code in INTERRUPTED or trace.facts.get("interrupted", False)
    incomplete = trace.facts.get("incomplete", False)
    if incomplete:
        place += ", INCOMPLETE records"
    if code:
        place += ", interrupted" if interrupted else _ending(code)
    refusal = trace.facts.get("refusal")
    if refusal:
        advice = "leave that part out or replace it where there is no GPU, or run it on a real one"
        return f"{place}: the emulation refused to go on", str(refusal), advice
    if interrupted and not any(finding.severity == "error" for finding in findings):
        return f"{place}: no verdict on a part of a run", went, "run it to its end"
    errors = [finding for finding in findings if finding.severity == "error"]
    warnings = [finding for finding in findings if finding.severity == "warning"]
    if code and warnings and not errors:
        return f"{place}: no finding explains it", went, "see its own error message"
    if errors or warnings:
        counts = [plural(len(some), word) for some, word in ((errors, "error"), (warnings, "warning")) if some]
        worst = (errors or warnings)[0]
        at = f" ({short(worst.site)})" if worst.site.file else ""
        return f"{place}: {', '.join(counts)}", f"{worst.code}{at}: {worst.message}", worst.advice
    if trace.facts.get("recorded_by") == "torch.cuda.memory":
        return _of_snapshot(trace, devices, place)
    if tests is not None:
        return f"{place}: nothing to fix", "no test's work on GPUs had an error or a warning", "nothing"
    if not any(device.used for device in devices) and not emulated:
        return (
            f"{place}: the profile holds no work on a GPU",
            "no kernel and no copy was recorded",
            "profile with `ProfilerActivity.CUDA`, around steps that use the GPU",
        )
    if incomplete:
        return (f"{place}: no finding in what is there", *_of_incomplete(trace.facts.get("unwritten")))
    if not any(device.used for device in devices):
        return (
            f"{place}: no GPU was used",
            "the program asked no device for anything",
            "move the model and its inputs to a device (`.to('cuda')`) if it should run on one",
        )
    if code:
        return f"{place}: no finding explains it", went, "see its own error message"
    if too_little := _too_little(devices, int(trace.facts.get("processes", 1))):
        return (f"{place}: {too_little[0]}", *too_little[1:])
    return f"{place}: nothing to fix", went, _next(trace, emulated)


def _too_little(devices: list[DeviceTotals], processes: int) -> tuple[str, str, str] | None:
    """What is said of runs in which devices had nothing to compute, or too little to judge their time by."""
    if not any(device.kernels or device.copies or device.collectives for device in devices):
        return (
            "only memory was taken",
            "no kernel and no copy was recorded",
            "run steps that compute if their time is wanted; the memory is judged as it is",
        )
    kernels = sum(device.kernels for device in devices) // max(1, processes)
    if kernels < SHORT:  # of a process: each is judged by itself
        return (
            "too short to judge",
            f"{plural(kernels, 'kernel')}, and start-up is most of so short a run",
            f"run more steps: from about {SHORT:,} kernels on the time is judged",
        )
    return None


def _of_incomplete(unwritten: str | None) -> tuple[str, str]:
    """Why records are missing, and what to do; `unwritten` is the system's reason why they could not be written."""
    if unwritten:
        return (
            f"a process that used a GPU could not write all its records: {unwritten}",
            "let it open files and write large ones (`ulimit -n`, `ulimit -f`), where there is room (TMPDIR)",
        )
    return (
        "a process that used a GPU was killed or ended past Python, and what it did last is not known",
        "let its processes end by themselves, also by `os._exit`; a pool of processes by `close()` and `join()`",
    )


def _of_snapshot(trace: Trace, devices: list[DeviceTotals], place: str) -> tuple[str, str, str]:
    """The verdict on a history of allocations alone: what was held, and by whom."""
    device = max(devices, key=lambda one: one.peak_allocated_bytes or 0, default=None)
    if device is None or device.peak is None:
        return f"{place}: the snapshot holds no allocation", "it has no segment and no event", "record while it works"
    verdict = f"{place}: {memory_words(device)} at the peak of {device.place}"
    if not trace.facts.get("history_allocations"):
        held = holders_words(device.peak, HOLDERS)
        return verdict, f"this was held when the snapshot was written{held and ': '}{held}", RECORD
    return (
        verdict,
        holders_words(device.peak, HOLDERS) or UNNAMED_LINES,
        "`windtunnel memory` on the same file tries other settings of the allocator",
    )


def holders_words(peak: Peak, most: int) -> str:
    """The lines that held most of a peak, and what has no line; empty where no line is known."""
    named = [one for one in peak.holders if one.site.file]
    if not named:
        return ""
    words = [f"{short(one.site)} held {format_bytes(one.size_bytes)}" for one in named[:1]]
    words += [f"{short(one.site)} {format_bytes(one.size_bytes)}" for one in named[1:most]]
    rest = peak.allocated_bytes - peak.unnamed_bytes - sum(one.size_bytes for one in named[:most])
    if rest >= SMALL * peak.allocated_bytes:
        words.append(f"other lines {format_bytes(rest)}")
    if peak.unnamed_bytes >= SMALL * peak.allocated_bytes:
        words.append(f"no line is known for {format_bytes(peak.unnamed_bytes)}")
    return ", ".join(words)


def _ending(code: int) -> str:
    return f", signal {code - 128} ended the program" if code > 128 else f", the program failed (exit code {code})"


def _where_time_went(devices: list[DeviceTotals], window_ns: int, of_window: str) -> str:
    if not window_ns:
        return "memory was taken, and no work was recorded"
    shares = [f"{device.place} busy {format_share(device.busy_share)}" for device in devices]
    shown = ", ".join(shares[:4]) + (", ..." if len(shares) > 4 else "")
    return f"{format_ns(window_ns)} from the first to the last operation; {shown} {of_window}"


def _next(trace: Trace, emulated: bool) -> str:
    shown = "the timeline and memory over time" if len(trace.memory) else "the timeline"
    other = "`--gpus` tries other cards" if emulated else "`windtunnel compare` puts an emulated run beside it"
    return f"nothing; `--report run.html` shows {shown}, {other}"


def memory_words(device: DeviceTotals) -> str:
    """Peak memory in one phrase: "1.20 GiB allocated (modelled, ±4%), 1.50 GiB reserved of 15.8 GiB"."""
    if device.peak_allocated_bytes is None:
        return "not known"
    if not device.used and device.memory_bytes:
        return f"nothing of {format_bytes(device.memory_bytes)}"
    words = f"{format_bytes(device.peak_allocated_bytes)} allocated"
    if device.modelled:
        words += f" ({peak_band_words(device)})"
    if device.peak_reserved_bytes is not None:
        words += f", {format_bytes(device.peak_reserved_bytes)} reserved"
    return f"{words} of {format_bytes(device.memory_bytes)}" if device.memory_bytes else words


def peak_band_words(device: DeviceTotals) -> str:
    """How sure a modelled peak is: "modelled, ±4%, at most 2.00 GiB if aten::topk takes more"."""
    words = "modelled" if device.peak_band is None else f"modelled, ±{format_share(device.peak_band)}"
    if device.peak_unsure and device.peak_at_most_bytes:
        words += f", at most {format_bytes(device.peak_at_most_bytes)} if {device.peak_unsure} takes more"
    return words
