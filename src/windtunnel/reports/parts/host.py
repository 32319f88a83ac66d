"""The host's own work beside the modelled step: what it takes, which line it is, and what would hide it.

The modelled clock knows the launches and waits of the host, not the Python, NumPy, decoding and reading between them.
Those are measured on the machine where the program ran (`facts["host_work"]`), and stand beside the modelled times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.reports.parts.time import RunTiming, Split
from windtunnel.trace.operation import UNKNOWN_SITE, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, plural

LEAST_NS, LEAST_SHARE, NOISE_NS = 1_000_000, 0.05, 300_000
"""Work of less than both, in absolute terms and of the step, is not worth a word; the noise of a machine never is."""
BOUND, BOUND_NS = 0.3, 500_000
"""From this share of the step and so much work on it is the verdict."""
INPUT = ("input",)
HIDDEN_CAUSES = ("compute", "memory", "communication", "copy")
FILE_BYTES_PER_S, FILE_CALL_NS, FILES_SHARE, FILES_LEAST = 1e9, 10_000, 0.3, 4096
"""What reading and writing take where the system has the files in memory; from that share of the work on it is they."""
MOST_WORKERS = 64
Line = tuple[str, int, str, int]
"""File, line, function, and how long it was found at work."""


@dataclass
class HostWork:
    """What the host did by itself in each step; times in nanoseconds.

    `own_ns` is the main thread's work, `batch_ns` what a batch of a loader takes where it is made, with `workers`
    (0: in the main thread, and so part of `own_ns`). `step_ns` is the modelled step, `input_ns` the part of it that
    operators on host tensors take, and `whole_ns` is it with the host's work; `unit` is what repeats: a step, or a
    round of a loop where there are no steps.
    """

    own_ns: int
    batch_ns: int
    workers: int
    step_ns: int
    input_ns: int
    whole_ns: int
    unit: str
    kind: str
    is_data: bool
    site: Site
    io_bytes: int
    rounds: int
    other_run: str = ""
    pace: float = 1.0  # by what the host that is emulated is slower than this machine

    @property
    def measured(self) -> str:
        """Where the host's work was measured."""
        words = "measured on this machine"
        words += f", in {self.other_run}" if self.other_run else ""
        return f"{words}, times {self.pace:.2g}" if self.pace != 1 else words

    @property
    def waited_share(self) -> float:
        """The share of the whole step in which the GPU waits for the host's work, what is modelled of it included."""
        return 1 - (self.step_ns - self.input_ns) / self.whole_ns if self.whole_ns else 0.0

    @property
    def is_bound(self) -> bool:
        """Whether it is the verdict."""
        return self.waited_share >= BOUND and self.work_ns >= BOUND_NS

    @property
    def work_ns(self) -> int:
        """What the host's work takes a step: of workers, each one's share."""
        return max(self.own_ns, self.batch_ns // max(1, self.workers))

    @property
    def needed_workers(self) -> int:
        """How many workers of a loader would hide the making of data behind the modelled step; 0 where none would."""
        needed = math.ceil((self.batch_ns or self.own_ns) / max(1, self.step_ns))
        return needed if needed <= MOST_WORKERS else 0


def measure(trace: Trace, timing: RunTiming, synchronized: bool, window_ns: int) -> HostWork | None:
    """The host's work of a run; None where it was not measured, or is too little to speak of.

    `synchronized` says whether the host waits for a device in each step, `window_ns` how long the run is.
    """
    record = trace.facts.get("host_from") or _record(trace.facts.get("host_work") or {})
    if record is None:
        return None
    stepped = record["unit"] == "step" and timing.step_ns is not None
    step_ns = timing.step_ns if stepped and timing.step_ns else window_ns // max(1, record["rounds"])
    own_ns, batch_ns, workers = record["work_ns"], record["batch_ns"] or 0, record["workers"]
    issuing_ns = step_ns if synchronized else step_ns - _busy_ns(timing, step_ns)
    by_workers_ns = batch_ns // workers if workers else 0
    work_ns = max(own_ns, by_workers_ns)
    if work_ns < NOISE_NS or (work_ns < LEAST_NS and work_ns < LEAST_SHARE * step_ns):
        return None
    return HostWork(
        own_ns,
        batch_ns,
        workers,
        step_ns,
        round(step_ns * min((_share(split, INPUT) for split in timing.splits), default=0.0)),
        max(step_ns, own_ns + issuing_ns, by_workers_ns),
        "step" if stepped else "round",
        record["kind"],
        record["makes_data"],
        Site(record["file"], record["line"], record["function"]),
        record["io_bytes"],
        record["rounds"],
        str(trace.facts.get("host_from_file", "")),
        float((trace.facts.get("host_work") or {}).get("pace", 1.0)),
    )


def _record(facts: Json) -> Json | None:
    """What was measured here, in the terms of the report of JSON."""
    if not facts.get("rounds"):
        return None
    own_ns, batch_ns = int(facts.get("round_ns", 0)), int(facts.get("batch_ns", 0))
    workers = int(facts.get("workers", 0))
    by_workers = workers > 0 and batch_ns // workers >= own_ns
    is_data, lines = _purpose(facts, by_workers, batch_ns, own_ns)
    site = _site(lines or facts.get("ended_by") or [])
    return {
        "unit": "step" if facts.get("steps") else "round",
        "rounds": int(facts["rounds"]),
        "work_ns": own_ns,
        "batch_ns": batch_ns,
        "workers": workers,
        "kind": _kind(facts, by_workers, is_data),
        "makes_data": is_data,
        "file": site.file,
        "line": site.line,
        "function": site.function,
        "io_bytes": int(facts.get("io_bytes", 0)),
    }


def _busy_ns(timing: RunTiming, step_ns: int) -> int:
    """How long the busiest device works in a step."""
    shares = [_share(split, HIDDEN_CAUSES) for split in timing.splits]
    return round(step_ns * max(shares, default=0.0))


def _share(split: Split, causes: Sequence[str]) -> float:
    return sum(split.causes.get(cause, 0) for cause in causes) / split.window_ns if split.window_ns else 0.0


def _purpose(facts: Json, by_workers: bool, batch_ns: int, own_ns: int) -> tuple[bool, list[Line]]:
    """Whether most of the work made data, and the lines that did most of it."""
    if by_workers:
        return True, facts.get("worker_lines") or []
    data, other = facts.get("data_lines") or [], facts.get("lines") or []
    if not data and not other:
        return 2 * batch_ns >= own_ns > 0, []
    is_data = sum(line[3] for line in data) >= sum(line[3] for line in other)
    return is_data, data if is_data else other


def _site(lines: list[Line]) -> Site:
    """The line of the function that worked most."""
    functions: Counter[tuple[str, str]] = Counter()
    for file, _, function, spent in lines:
        functions[file, function] += spent
    if not functions:
        return UNKNOWN_SITE
    (most, _), *_ = functions.most_common(1)
    file, line, function, _ = max((one for one in lines if (one[0], one[2]) == most), key=lambda one: one[3])
    return Site(file, line, function)


def _kind(facts: Json, by_workers: bool, is_data: bool) -> str:
    """What kind of work it is: "disk", "waiting", "data" or "python"."""
    size, calls = int(facts.get("io_bytes", 0)), int(facts.get("io_calls", 0))
    work_ns = int(facts.get("batch_ns" if by_workers else "round_ns", 0))
    blocked = float(facts.get("batch_blocked_share" if by_workers else "blocked_share", 0.0))
    io_ns = 1e9 * size / FILE_BYTES_PER_S + calls * FILE_CALL_NS
    if size >= FILES_LEAST and (blocked >= 0.5 or io_ns >= FILES_SHARE * work_ns):
        return "disk"
    if float(facts.get("files_share", 0.0)) >= 0.5:
        return "disk"
    if is_data:
        return "data"
    return "waiting" if blocked >= 0.5 else "python"


# ---------------------------------------------------------------------- in words


def _waits_for(work: HostWork) -> str:
    if work.is_data:
        return "the GPU waits for data from files" if work.kind == "disk" else "the GPU waits for data"
    if work.kind == "disk":
        return "the GPU waits for files that the host reads or writes"
    return "the GPU waits for a host that waits itself" if work.kind == "waiting" else "the GPU waits for Python"


def verdict_words(work: HostWork, line: str) -> str:
    """What the GPU waits for: "the GPU waits for data: 94 % of the step at loader.py:31"."""
    at = f" at {line}" if work.site.file else ""
    return f"{_waits_for(work)}: {format_share(work.waited_share)} of the {work.unit}{at}"


def why_words(work: HostWork, line: str) -> str:
    """Host time and device time, told apart."""
    if work.workers and work.batch_ns // work.workers >= work.own_ns:
        took = f"a batch takes a loader's worker {format_ns(work.batch_ns)}, so {plural(work.workers, 'worker')} "
        took += f"deliver one every {format_ns(work.batch_ns // work.workers)}"
    else:
        took = f"the host works {format_ns(work.own_ns)} by itself in each {work.unit}"
        took += f", most of it at {line}" if work.site.file else ""
    read = f", and moves {format_bytes(work.io_bytes)} of files" if work.kind == "disk" and work.io_bytes else ""
    return (
        f"{took}{read} ({work.measured}); the emulated {work.unit} takes {format_ns(work.step_ns)} (modelled) "
        f"and would take about {format_ns(work.whole_ns)} with it"
    )


def next_words(work: HostWork) -> str:
    """What would help."""
    if work.kind == "disk" and not work.is_data:
        return "do it less often, or let another thread or process do it while the GPU works on"
    if work.kind == "waiting":
        return "let another thread or process wait (a queue that is filled ahead of time), or wait less often"
    if work.kind == "python":
        return "move it out of the loop, do it less often or in another process, or vectorize it"
    now = f"instead of {work.workers} " if work.workers else ""
    if work.needed_workers:
        return (
            f"{plural(max(work.needed_workers, work.workers + 1), 'worker')} {now}would hide it ({work.measured}"
            f"): `DataLoader(..., num_workers={max(work.needed_workers, work.workers + 1)})`"
        )
    each_ns = (work.batch_ns or work.own_ns) // 16
    return (
        f"prepare the data once, ahead of the training (decoded, in one file): even {MOST_WORKERS} workers of a "
        f"`DataLoader` would not hide it, and 16 deliver a batch every {format_ns(each_ns)} at best"
    )


def figure_words(work: HostWork, line: str) -> str:
    """The row of the short report."""
    if work.workers and work.batch_ns // work.workers >= work.own_ns:
        took = f"{format_ns(work.batch_ns)} a batch in {plural(work.workers, 'worker')}"
    else:
        took = f"{format_ns(work.own_ns)} a {work.unit} of its own work"
    where = f" at {line}" if work.site.file else ""
    measured = f"measured in {work.other_run}" if work.other_run else "measured here"
    return f"{took}{where} ({measured}, not in the {work.unit} above)"


def as_dict(work: HostWork | None) -> Json | None:
    """For the report of JSON."""
    if work is None:
        return None
    return {
        "source": "measured",
        "unit": work.unit,
        "rounds": work.rounds,
        "kind": work.kind,
        "makes_data": work.is_data,
        "work_ns": work.own_ns,
        "batch_ns": work.batch_ns or None,
        "workers": work.workers,
        "step_with_host_ns": work.whole_ns,
        "waited_share": round(work.waited_share, 4),
        "io_bytes": work.io_bytes,
        "file": work.site.file,
        "line": work.site.line,
        "function": work.site.function,
        "workers_that_would_hide_it": work.needed_workers or None,
    }
