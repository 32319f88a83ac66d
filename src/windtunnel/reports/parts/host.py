"""The host's own work beside the modelled step: what it takes, which line it is, and what would hide it.

The modelled clock knows the launches and waits of the host, not the Python, NumPy, decoding and reading between them.
Those are measured on the machine where the program ran (`facts["host_work"]`), and stand beside the modelled times.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from windtunnel.reports.parts.time import Split, Timing
from windtunnel.trace.operation import UNKNOWN_SITE, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, plural

LEAST_NS, LEAST_SHARE, NOISE_NS = 1_000_000, 0.05, 500_000
"""Work of less than both, in absolute terms and of the step, is not worth a word; the noise of a machine never is."""
BOUND, BOUND_NS = 0.3, 2_000_000
"""From this share of the step and so much work on, which no other work on this machine explains, it is the verdict."""
HIDDEN_CAUSES = ("compute", "memory", "communication", "copy")
READING_BYTES_PER_S = 200e6
"""Who reads files faster than this does little else: decoding a picture or a compressed array is slower."""
READING_LEAST = 4096
MOST_WORKERS = 64


@dataclass
class HostWork:
    """What the host did by itself in each step; times in nanoseconds.

    `own_ns` is the main thread's work, `batch_ns` what a batch of a loader takes where it is made, with `workers`
    (0: in the main thread, and so part of `own_ns`). `step_ns` is the modelled step, and `whole_ns` is it with the
    host's work; `unit` is what repeats: a step, or a round of a loop where there are no steps.
    """

    own_ns: int
    batch_ns: int
    workers: int
    step_ns: int
    whole_ns: int
    unit: str
    kind: str
    site: Site
    read_bytes: int

    @property
    def waited_share(self) -> float:
        """The share of the whole step in which the GPU waits for the host's work."""
        return 1 - self.step_ns / self.whole_ns if self.whole_ns else 0.0

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


def measure(trace: Trace, timing: Timing, synchronized: bool, window_ns: int) -> HostWork | None:
    """The host's work of a run; None where it was not measured, or is too little to speak of."""
    facts: Json = trace.facts.get("host_work") or {}
    rounds = int(facts.get("rounds", 0))
    if not rounds:
        return None
    stepped = bool(facts.get("steps")) and timing.step_ns is not None
    step_ns = timing.step_ns if stepped and timing.step_ns else window_ns // rounds
    own_ns, batch_ns = int(facts.get("round_ns", 0)), int(facts.get("batch_ns", 0))
    workers = int(facts.get("workers", 0))
    issuing_ns = step_ns if synchronized else step_ns - _busy_ns(timing, step_ns)
    whole_ns = max(step_ns, own_ns + issuing_ns)
    if workers:
        whole_ns = max(whole_ns, batch_ns // workers)
    work_ns = max(own_ns, batch_ns // workers if workers else 0)
    if work_ns < NOISE_NS or (work_ns < LEAST_NS and work_ns < LEAST_SHARE * step_ns):
        return None
    by_workers = workers > 0 and batch_ns // workers >= own_ns
    return HostWork(
        own_ns,
        batch_ns,
        workers,
        step_ns,
        whole_ns,
        "step" if stepped else "round",
        _kind(facts, work_ns),
        _site(facts, by_workers),
        int(facts.get("read_bytes", 0)),
    )


def _busy_ns(timing: Timing, step_ns: int) -> int:
    """How long the busiest device works in a step."""
    shares = [_busy_share(split) for split in timing.splits]
    return round(step_ns * max(shares, default=0.0))


def _busy_share(split: Split) -> float:
    return sum(split.causes.get(cause, 0) for cause in HIDDEN_CAUSES) / split.window_ns if split.window_ns else 0.0


def _site(facts: Json, by_workers: bool) -> Site:
    """The line of the function that worked most; without looks at it, the line that came after most of the work."""
    lines = facts.get("worker_lines" if by_workers else "lines") or facts.get("ended_by") or []
    functions: Counter[tuple[str, str]] = Counter()
    for file, _, function, spent in lines:
        functions[file, function] += spent
    if not functions:
        return UNKNOWN_SITE
    (most, _), *_ = functions.most_common(1)
    file, line, function, _ = max((one for one in lines if (one[0], one[2]) == most), key=lambda one: one[3])
    return Site(file, line, function)


def _kind(facts: Json, work_ns: int) -> str:
    """What kind of work it is: "disk", "data", "waiting" or "Python"."""
    read, blocked = int(facts.get("read_bytes", 0)), float(facts.get("blocked_share", 0.0))
    reading = read >= READING_LEAST and (blocked >= 0.5 or read / (work_ns / 1e9) >= READING_BYTES_PER_S)
    if reading:
        return "disk"
    if facts.get("workers") or float(facts.get("data_share", 0.0)) >= 0.5:
        return "data"
    return "waiting" if blocked >= 0.5 else "Python"


# ---------------------------------------------------------------------- in words

WAITS_FOR = {
    "disk": "the GPU waits for data from files",
    "data": "the GPU waits for data",
    "waiting": "the GPU waits for a host that waits itself",
    "Python": "the GPU waits for the host's own work",
}


def verdict_words(work: HostWork, line: str) -> str:
    """What the GPU waits for: "the GPU waits for data: 94 % of the step at loader.py:31"."""
    at = f" at {line}" if work.site.file else ""
    return f"{WAITS_FOR[work.kind]}: {format_share(work.waited_share)} of the {work.unit}{at}"


def why_words(work: HostWork, line: str) -> str:
    """Host time and device time, told apart."""
    if work.workers and work.batch_ns // work.workers >= work.own_ns:
        took = f"a batch takes a loader's worker {format_ns(work.batch_ns)}, so {plural(work.workers, 'worker')} "
        took += f"deliver one every {format_ns(work.batch_ns // work.workers)}"
    else:
        took = f"the host works {format_ns(work.own_ns)} by itself in each {work.unit}"
        took += f", most of it at {line}" if work.site.file else ""
    read = f", and reads {format_bytes(work.read_bytes)}" if work.kind == "disk" else ""
    return (
        f"{took}{read} (measured on this machine); the emulated {work.unit} takes {format_ns(work.step_ns)} (modelled) "
        f"and would take about {format_ns(work.whole_ns)} with it"
    )


def next_words(work: HostWork) -> str:
    """What would help."""
    if work.kind == "waiting":
        return "let another thread or process wait (a queue that is filled ahead of time), or wait less often"
    if work.kind == "Python":
        return "move it out of the loop, do it less often or in another process, or vectorize it"
    now = f"instead of {work.workers} " if work.workers else ""
    if work.needed_workers:
        return (
            f"{plural(max(work.needed_workers, work.workers + 1), 'worker')} {now}would hide it (measured on this "
            f"machine): `DataLoader(..., num_workers={max(work.needed_workers, work.workers + 1)})`"
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
    return f"{took}{where} (measured here, not in the {work.unit} above)"


def as_dict(work: HostWork | None) -> Json | None:
    """For the report of JSON."""
    if work is None:
        return None
    return {
        "source": "measured",
        "unit": work.unit,
        "kind": work.kind.lower(),
        "work_ns": work.own_ns,
        "batch_ns": work.batch_ns or None,
        "workers": work.workers,
        "step_with_host_ns": work.whole_ns,
        "waited_share": round(work.waited_share, 4),
        "read_bytes": work.read_bytes,
        "file": work.site.file,
        "line": work.site.line,
        "function": work.site.function,
        "workers_that_would_hide_it": work.needed_workers or None,
    }
