"""What can be wrong with a program, one rule a file: a trace goes in, findings come out.

A check is a reducer: `see` is called with every record of the kinds that it asks for, in order, and `findings` may be
called at any time after. Kernels, of which there may be millions, come to its parts, a block at a time. So the same
file serves a running program and a saved trace. Listing this folder is the registry: a module whose name does not begin
with an underscore holds one subclass of `Check`, and the subclass's docstring is its page in the documentation.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, Self

import numpy as np

from windtunnel.checks._words import framework_of, in_words_of
from windtunnel.checks._work import Work
from windtunnel.errors import UsageError
from windtunnel.trace.blocks import Block, blocks
from windtunnel.trace.finding import SEVERITIES, Finding, Severity
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Record, Trace


class Part(Protocol):
    """A reducer that several checks read: it sees each block of records once, before they do."""

    def see(self, block: Block) -> object:
        """Take notice of a block."""


class Check:
    """Base of every check: a reducer from records to findings."""

    code: ClassVar[str] = ""
    severity: ClassVar[Severity] = "warning"  # the worst that it reports; what costs nothing is reported as info
    costs: ClassVar[bool] = False  # whether it only finds what takes time or memory: what is computed is right
    kinds: ClassVar[frozenset[Kind]] = frozenset()  # the records that it wants to see; of kernels those of `Work.told`
    precedence: ClassVar[int] = 0  # among findings of one severity, the higher come first: what others follow from
    supersedes: ClassVar[frozenset[str]] = frozenset()  # codes that say the same of the same lines, less exactly
    parts: ClassVar[Mapping[str, type[Part]]] = {}  # attributes that `Run` fills in, shared between checks

    @classmethod
    def title(cls) -> str:
        """What it finds, in a sentence."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    @classmethod
    def page(cls) -> str:
        """Its page of the documentation, as Markdown: what it does, why that is bad, and what to do instead."""
        rest = (inspect.getdoc(cls) or "").partition("\n")[2]
        return f"# {cls.code}\n\n{cls.title()} Severity: {cls.severity}.\n{rest}\n"

    def see(self, record: Record, trace: Trace) -> None:
        """Take notice of one record; `trace` holds the tables that the record's value may index."""

    def findings(self, trace: Trace) -> list[Finding]:
        """What is wrong, judged by the records seen so far."""
        raise NotImplementedError

    def candidates(self, trace: Trace) -> list[Finding]:
        """What it would find were the cost of no matter: fixes to try where `findings` says nothing."""
        return []

    def excused(self, finding: Finding, others: Sequence[Self]) -> bool:
        """Whether what the same check saw on the other ranks of a run shows that `finding` is none."""
        return False


@functools.cache
def all_checks() -> tuple[type[Check], ...]:
    """Every check of this folder, by code."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue
        namespace = vars(importlib.import_module(f"{__name__}.{module.name}"))
        found += [
            value
            for value in namespace.values()
            if isinstance(value, type) and issubclass(value, Check) and value.__module__ == namespace["__name__"]
        ]
    return tuple(sorted(found, key=lambda check: check.code))


def select(codes: Iterable[str] | None = None) -> tuple[type[Check], ...]:
    """The checks of these codes, or all of them.

    Raises:
        UsageError: there is no check of that code.
    """
    known = {check.code: check for check in all_checks()}
    if codes is None:
        return tuple(known.values())
    wanted = list(codes)
    for code in wanted:
        if code not in known:
            near = difflib.get_close_matches(code, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the codes are {', '.join(known)}"
            raise UsageError(f"there is no check {code!r}; {hint}")
    return tuple(known[code] for code in known if code in wanted)


class Run:
    """Checks at work: let it read a trace as far as there is any, and ask for findings at any moment."""

    def __init__(self, codes: Iterable[str] | None = None) -> None:
        """Prepare the checks of these codes, or all; raises UsageError when there is no check of one of the codes."""
        self.checks = [check() for check in select(codes)]
        self.work = Work()
        shared: dict[type[Part], Part] = {Work: self.work}
        for check in self.checks:
            for name, kind in check.parts.items():
                if kind not in shared:
                    shared[kind] = kind()
                setattr(check, name, shared[kind])
        self.parts = list(shared.values())
        self.known = 0  # rows that were read
        self.readers: dict[Kind, list[Callable[[Record, Trace], None]]] = {
            kind: [check.see for check in self.checks if kind in check.kinds] for kind in Kind
        }

    def read(self, trace: Trace) -> None:
        """Show the records that are new to the checks that ask for their kinds."""
        asked = np.array([kind != Kind.KERNEL and bool(self.readers[kind]) for kind in Kind])
        kernels = bool(self.readers[Kind.KERNEL])
        for block in blocks(trace, self.known):
            for part in self.parts:
                part.see(block)
            which = asked[block.kind]
            if kernels:
                which |= self.work.told() & (block.kind == Kind.KERNEL)
            for index, record in zip(np.flatnonzero(which).tolist(), block.records(which), strict=True):
                self.work.at(index)
                for see in self.readers[record.kind]:
                    see(record, trace)
            self.work.close()
            self.known += len(block)

    def findings(self, trace: Trace) -> list[Finding]:
        """All findings, the worst and most expensive first, one an incident."""
        found = [finding for check in self.checks for finding in check.findings(trace)]
        covered = _covered(found)
        framework = framework_of(trace.facts)
        kept = [
            in_words_of(framework, _with_hint(finding, trace.line(finding.site)))
            for finding in found
            if (finding.code, _line(finding.site)) not in covered and not suppressed(finding, trace.line(finding.site))
        ]
        return sorted(kept, key=rank)

    def candidates(self, trace: Trace) -> list[Finding]:
        """What the checks would find were the cost of no matter, in the words of the framework."""
        framework = framework_of(trace.facts)
        found = [in_words_of(framework, finding) for check in self.checks for finding in check.candidates(trace)]
        return [finding for finding in found if not suppressed(finding, trace.line(finding.site))]

    def excused(self, finding: Finding, others: Sequence[Run]) -> bool:
        """Whether what the other ranks' checks saw shows that a finding is none."""
        for index, check in enumerate(self.checks):
            if check.code == finding.code:
                return check.excused(finding, [other.checks[index] for other in others])
        return False


def run(trace: Trace, codes: Iterable[str] | None = None) -> list[Finding]:
    """All findings of a trace, the worst and most expensive first, one an incident.

    Args:
        trace: what happened, from a finished emulation or a saved file.
        codes: the checks to run; all when None.

    Raises:
        UsageError: there is no check of one of the codes.
    """
    return run_ranks([trace], codes)


def run_ranks(traces: Sequence[Trace], codes: Iterable[str] | None = None) -> list[Finding]:
    """The findings of each process of a run, one process after the other, less those that another one excuses.

    Raises:
        UsageError: there is no check of one of the codes.
    """
    return [finding for _, findings in examine(traces, codes) for finding in findings]


def examine(traces: Sequence[Trace], codes: Iterable[str] | None = None) -> list[tuple[Run, list[Finding]]]:
    """The checks that have seen each process of a run, with their findings less those that another process excuses.

    Raises:
        UsageError: there is no check of one of the codes.
    """
    names = None if codes is None else list(codes)
    runs = [Run(names) for _ in traces]
    for checks, trace in zip(runs, traces, strict=True):
        checks.read(trace)
    found = [(checks, checks.findings(trace)) for checks, trace in zip(runs, traces, strict=True)]
    covered = _covered(finding for _, findings in found for finding in findings)
    kept = []
    for checks, findings in found:
        others = [other for other in runs if other is not checks]
        left = [finding for finding in findings if (finding.code, _line(finding.site)) not in covered]
        kept.append((checks, [finding for finding in left if not checks.excused(finding, others)]))
    return kept


def _covered(findings: Iterable[Finding]) -> set[tuple[str, tuple[str, int]]]:
    """The codes and lines of findings of which others say the same more exactly."""
    return {
        (code, _line(site))
        for finding in findings
        for code in _by_code()[finding.code].supersedes
        for site in (finding.site, finding.other)
        if site.file
    }


@functools.cache
def _by_code() -> dict[str, type[Check]]:
    return {check.code: check for check in all_checks()}


def suppressed(finding: Finding, text: str) -> bool:
    """Whether a finding's line says `# windtunnel: ignore[code]` with the finding's code; a bare ignore is none."""
    codes = [code.strip() for names in _IGNORE.findall(text) for code in names.split(",")]
    return finding.code in codes


def _with_hint(finding: Finding, text: str) -> Finding:
    """A finding on a line whose `ignore` names no code, or another one, says what would silence it."""
    if not _IGNORE.search(text):
        return finding
    hint = f"to silence it, name it: `# windtunnel: ignore[{finding.code}]`"
    return finding._replace(advice=f"{finding.advice}; {hint}")


_IGNORE = re.compile(r"#\s*windtunnel:\s*ignore(?:\[([^\]]*)\])?")


def _line(site: Site) -> tuple[str, int]:
    return site.file, site.line


def costs(finding: Finding) -> bool:
    """Whether what a finding reports only takes time or memory: the program is right."""
    known = _by_code().get(finding.code)
    return finding.severity != "error" and known is not None and known.costs


def rank(finding: Finding) -> tuple[int, int, float, int, int, str, int, str]:
    """The order of findings: severity, causes before consequences, what is wrong before what is slow, what is saved."""
    first = SEVERITIES.index(finding.severity), -_precedence(finding.code)
    saved = float("inf") if finding.saved_share is None else finding.saved_share
    place = finding.site.file, finding.site.line, finding.code
    return *first, -saved, -finding.lost_ns, -finding.size_bytes, *place


def _precedence(code: str) -> int:
    known = _by_code().get(code)
    return 0 if known is None else known.precedence
