"""What the checks find in tests: collected test by test, shown at the end, written as reports, held to gates.

A test's findings are those in the records of its own: from its set-up, fixtures included, to the end of its body. They
travel on pytest's reports as plain lists, so that those of pytest-xdist's workers arrive as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from windtunnel import checks, launch, reports
from windtunnel.checks._gates import Gate, broken, parse_gates
from windtunnel.errors import UsageError
from windtunnel.reports.parts.summary import short
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import plural
from windtunnel.version import __version__

if TYPE_CHECKING:
    from windtunnel.session import Session

ATTRIBUTE = "gpu_findings"  # of pytest's reports: a list, so that xdist can send it
GRAVE = ("error", "warning")
TITLE = "GPU findings"


@dataclass
class Watch:
    """One test's share of the trace: from row `first` of a session's."""

    session: Session | None
    first: int
    found: list[Finding] = field(default_factory=list)
    speed: bool = False  # whether findings of what only costs time or memory are shown too

    def shown(self) -> list[Finding]:
        """Of what was found, what stands beside a test's traceback."""
        return [one for one in self.found if one.severity in GRAVE and (self.speed or not checks.costs(one))]

    def findings(self, now: Session | None) -> list[Finding]:
        """What is found in the test so far; `now` is the session that runs, which the test itself may have begun."""
        session = self.session or now
        if session is None or len(session.trace) <= self.first:
            return []
        session.complete()
        trace = session.trace if self.first == 0 else session.trace.since(self.first)
        return checks.run(trace.canonical())


def require(paths: Sequence[str]) -> None:
    """Refuse, before anything runs, reports that cannot be made of tests.

    Raises:
        UsageError: the suffix is unknown, or is of a format that shows one run's timeline or memory.
    """
    for path in paths:
        module = reports.find(path)
        if getattr(module, "PER_PROCESS", False) or getattr(module, "HISTORY", False):
            raise UsageError(
                f"{path}: a {module.SUFFIX} report shows the timeline of one program, not the findings of many tests; "
                "take .sarif, .json, .md or .txt, or run a test alone under `windtunnel run -m pytest`"
            )


def gates_of(given: str | Sequence[str] | None) -> list[Gate]:
    """The gates of `--gpu-fail-on`, or of `fail-on` in pyproject.toml."""
    return parse_gates([given] if isinstance(given, str) else given or [])


def words(finding: Finding) -> str:
    """One finding as lines of a test's output."""
    other = f" (and {short(finding.other)})" if finding.other.file else ""
    where = f" {short(finding.site)}{other}" if finding.site.file else ""
    return f"{finding.severity} {finding.code}{where}\n  {finding.message}\n  {finding.advice}"


def complaint(gates: Sequence[Gate], findings: Sequence[Finding]) -> str:
    """What a test fails with; empty when it keeps to its gates."""
    told = [
        f"{gate.what}: {plural(sum(one.times for one in some), 'time')}, {gate.most} allowed\n"
        + "\n".join(map(words, some))
        for gate, some in broken(gates, findings)
    ]
    return "\n".join(told)


@contextmanager
def shown_when_failing(item: pytest.Item, watch: Watch, running: Callable[[], Session | None]) -> Iterator[None]:
    """Keep a test's findings; show them beside its traceback when it fails of itself.

    A test that Ctrl-C or `pytest.exit` ends has no report, so nobody waits for its findings.
    """
    try:
        yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except pytest.fail.Exception:  # says in its own words why, ours included
        watch.found = watch.findings(running())
        raise
    except BaseException:
        watch.found = watch.findings(running())
        if shown := watch.shown():
            item.add_report_section("call", TITLE, "\n".join(map(words, shown)))
        raise
    else:
        watch.found = watch.findings(running())


def pack(findings: Sequence[Finding]) -> list[list[object]]:
    """Findings as plain lists."""
    return [[*finding[:4], *(list(site[:3]) for site in finding[4:7]), *finding[7:]] for finding in findings]


def unpack(packed: Sequence[Sequence[Any]]) -> list[Finding]:
    """The inverse of `pack`; stacks are not sent."""
    return [Finding(*row[:4], *(Site(*site) for site in row[4:7]), *row[7:]) for row in packed]


class Collected:
    """The findings of all tests, in the process that prints the summary."""

    def __init__(self, speed: bool = False) -> None:
        """`speed`: show what only costs time or memory as well."""
        self.speed = speed
        self.all: list[Finding] = []

    @property
    def findings(self) -> list[Finding]:
        """Those to be shown, one a line of the program."""
        return [one for one in launch.merge(self.all) if self.speed or not checks.costs(one)]

    def add(self, report: object) -> None:
        """Take up what a report brings."""
        self.all += unpack(getattr(report, ATTRIBUTE, ()))

    def hidden(self) -> str:
        """How many warnings are not shown, and how to see them; empty where there are none."""
        found = [one for one in launch.merge(self.all) if one.severity in GRAVE and checks.costs(one)]
        if self.speed or not found:
            return ""
        return f"; {plural(len(found), 'finding')} of speed, shown by --gpu-findings=speed"

    def lines(self, room: int) -> list[str]:
        """What stands at the end of pytest's output, in so many lines: counts, then the grave ones."""
        grave = [finding for finding in self.findings if finding.severity in GRAVE]
        if not grave:
            return []
        counts = [(sum(one.severity == grade for one in grave), grade) for grade in GRAVE]
        found = " and ".join(plural(count, grade) for count, grade in counts if count)
        head, told = f"windtunnel found {found}:", [line for one in grave for line in words(one).split("\n")]
        if len(told) < room:
            return [head, *told]
        short = [words(one).partition("\n")[0] for one in grave]
        if len(short) >= room:
            more = len(short) - room + 2
            short = [*short[: room - 2], f"and {more} more; --gpu-report findings.md writes all of them"]
        return [head, *short]

    def write(self, paths: Sequence[str], facts: Json) -> None:
        """Write the reports that were asked for; raises OSError when one cannot be written."""
        trace = Trace()
        trace.facts |= {"program": "pytest", "versions": {"windtunnel": __version__}, **facts}
        for path in paths:
            reports.write(Path(path), trace, self.findings)
