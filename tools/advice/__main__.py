"""`make advice`: every advice that a patch can follow is followed, and the change is held to what was promised.

Each program is rehearsed. Where a finding promises a share of the step, or of the memory, and there is a patch, by hand
(`loops.py`, `patches.toml`), one that fits any program (`rewriting.py`) or the allocator's setting that the finding
names, the patched program is rehearsed too: the step must get shorter, or the peak lower, by the promised share within
a factor of 1.5. The patches that fit any program are tried on all of them, so that what a finding should have promised
is seen: where a run is long enough to be judged, none may save 3 % that nothing promised. Where the verdict is that
there is nothing to fix, the patches by hand are tried as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from tools import ROOT
from tools.advice.rehearsal import MEASURED, Rehearsal, prepare, rehearse
from tools.advice.targets import Change, Target, prepared, targets
from windtunnel.judgement import SHORT
from windtunnel.trace.finding import WORTH, Finding

WITHIN = 1.5
NEEDED = 0.95
SETTING = re.compile(r"PYTORCH_CUDA_ALLOC_CONF=([\w:,]+)(?=:|;|$)")
DECIDES = ("src/windtunnel/**/*.py", "src/windtunnel/**/*.toml", "tools/advice/*", "tests/checks/pages/*.md")
"""The files on which an outcome depends, besides the programs of others."""


@dataclass(frozen=True)
class Row:
    """One advice that was followed: the shares of `of` that were promised and saved, and how the peak changed."""

    program: str
    what: str
    of: str
    promised: float
    saved: float
    peak: float

    @property
    def improved(self) -> bool:
        """Whether the step got shorter, or the memory less."""
        return self.saved > 0

    @property
    def kept(self) -> bool:
        """Whether what was saved is within a factor of 1.5 of what was promised."""
        return self.improved and self.promised / WITHIN <= self.saved <= self.promised * WITHIN


@dataclass
class Outcome:
    """What became of one program's advice."""

    program: str
    origin: str
    rehearsed: bool = False
    followed: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    tried: int = 0
    nothing_to_fix: bool = False
    too_short: bool = False
    unfollowed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, line: str) -> Outcome:
        """An outcome from a line of the file in which it was kept."""
        plain = json.loads(line)
        rows = {name: [Row(**row) for row in plain[name]] for name in ("followed", "missed")}
        return cls(**{**plain, **rows})


def promised(findings: list[Finding], change: Change) -> float:
    """The share that findings promise together to whoever changes that; waits that hide one another promise once."""
    found = [one for one in findings if one.saved_share and change.follows(one)]
    shares = {(one.site.file, one.site.line): one.saved_share or 0.0 for one in found}
    together = [one for one in found if "and the other waits" in one.message]
    return max(shares.values()) if together else min(1.0, sum(shares.values()))


def follow(target: Target) -> Outcome:
    """Follow every advice on a program that has a patch, and try the fixes that nothing promised."""
    outcome = Outcome(target.name, target.origin)
    before = rehearse(target.job)
    worth = [one for one in before.findings if one.severity != "info" and (one.saved_share or 0.0) >= WORTH]
    if before.failed:
        outcome.left_out.append(before.failed)
    if before.failed or not (before.kernels or worth):
        return outcome
    outcome.rehearsed = True
    short = before.kernels < SHORT
    outcome.too_short = short and not worth
    nothing = outcome.nothing_to_fix = not short and not any(one.severity != "info" for one in before.findings)
    followed: set[str] = set()
    for change in [*target.changes, *_settings(target, worth)]:
        share = promised(worth, change)
        codes = {one.code for one in worth if change.follows(one)}
        tried = share or (before.kernels and (nothing if change.code else not change.promised))
        if not tried or (codes and codes <= followed):
            continue
        after = rehearse(change.job._replace(judged=False))
        if not after.failed and after.hazards > before.hazards:
            outcome.left_out.append(f"the patch of {change.code or change.fix} has a race of its own")
        if after.failed or after.hazards > before.hazards:
            continue
        of = next((one.saved_of for one in worth if change.follows(one)), "step")
        row = _row(target, change, of, share, before, after)
        if share:
            outcome.followed.append(row)
            followed |= codes
        elif not short:
            outcome.tried += 1
            if row.saved >= WORTH and row.saved > WITHIN * promised(list(before.findings), change):
                outcome.missed.append(row)
    outcome.unfollowed = sorted({one.code for one in worth} - followed)
    return outcome


def _settings(target: Target, findings: list[Finding]) -> Iterator[Change]:
    """What sets the allocator as a finding advises."""
    for finding in findings:
        found = SETTING.search(finding.advice)
        if found is not None:
            variables = {"PYTORCH_CUDA_ALLOC_CONF": found[1]}
            yield Change(target.job._replace(variables=variables), code=finding.code)


def _row(target: Target, change: Change, of: str, share: float, before: Rehearsal, after: Rehearsal) -> Row:
    saved = after.share_of(before, of)
    peak = after.peak_bytes / before.peak_bytes - 1.0 if before.peak_bytes else 0.0
    return Row(target.name, change.code or change.fix, of, share, saved, peak)


def say(outcome: Outcome) -> None:
    """Print what became of a program's advice, and why it was not run."""
    for row in outcome.followed:
        mark = "" if row.kept else "  outside" if row.improved else "  NOT BETTER"
        print(f"{_beginning(row)} {row.promised:6.1%} {row.saved:6.1%} of the {row.of}, peak {row.peak:+.0%}{mark}")
    for row in outcome.missed:
        verdict = ", and the verdict is 'nothing to fix'" if outcome.nothing_to_fix else ""
        print(f"{_beginning(row)} nothing promised, {row.saved:6.1%} saved{verdict}")
    for reason in outcome.left_out:
        print(f"{outcome.program}: not run: {reason}")
    sys.stdout.flush()


def _beginning(row: Row) -> str:
    return f"{row.program:58} {row.what:20}"


class Journal:
    """The outcomes so far, one a line of a file, so that a run that was cut goes on where it was.

    Raises:
        click.UsageError: the file is of other code.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: list[Outcome] = []
        if path is None:
            return
        code = _fingerprint()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if lines and lines[0] != code:
            raise click.UsageError(f"{path} holds outcomes of other code: name another file")
        self.done = [Outcome.read(line) for line in lines[1:]]
        if not lines:
            path.write_text(f"{code}\n", "utf-8")

    def keep(self, outcome: Outcome) -> None:
        """Write an outcome down."""
        self.done.append(outcome)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for pattern in DECIDES:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def summarize(outcomes: list[Outcome]) -> bool:
    """Print the figures of all programs; whether they are what is asked for."""
    origins = dict.fromkeys(one.origin for one in outcomes)
    for origin in origins:
        print(f"{origin}: {_figures([one for one in outcomes if one.origin == origin])}")
    print(f"all: {_figures(outcomes)}")
    rows = [row for one in outcomes for row in one.followed]
    memory = [row for row in rows if row.of in MEASURED]
    grown = [row for row in rows if row.of not in MEASURED and row.peak > WORTH]
    print(
        f"of the promises {len(memory)} are of memory; of the other {len(rows) - len(memory)} patches {len(grown)} "
        f"raised the peak by more than {WORTH:.0%}"
        + (f", by at most {max(row.peak for row in grown):.0%}" if grown else "")
    )
    unfollowed = Counter(code for one in outcomes for code in one.unfollowed)
    print(f"not followed, for want of a patch: {dict(unfollowed) or 'none'}")
    missed = [row for one in outcomes for row in one.missed]
    tried = sum(one.tried for one in outcomes)
    print(
        f"{tried} fixes that nothing promised tried on runs of {SHORT:,} kernels or more: "
        f"{len(missed)} saved {WORTH:.0%}"
    )
    nothing = [one for one in outcomes if one.nothing_to_fix]
    wrong = sum(bool(one.missed) for one in nothing)
    print(
        f"verdict 'nothing to fix' on {len(nothing)} programs, {wrong} of them wrong; "
        f"too short to judge: {sum(one.too_short for one in outcomes)}"
    )
    wanted = NEEDED * len(rows)
    return (
        bool(rows)
        and not missed
        and all(count >= wanted for count in (sum(row.improved for row in rows), sum(row.kept for row in rows)))
    )


def _figures(outcomes: list[Outcome]) -> str:
    rows = [row for one in outcomes for row in one.followed]
    improved, kept = sum(row.improved for row in rows), sum(row.kept for row in rows)
    return (
        f"{sum(one.rehearsed for one in outcomes)} programs, {len(rows)} promises of {WORTH:.0%} or more followed, "
        f"{improved} improved, {kept} within a factor of {WITHIN}"
    )


@click.command()
@click.option("--only", default="", help='Programs whose names hold this: "corpus", "loop: encoder", "nanoGPT".')
@click.option("--part", default="1/1", help="Every Nth of these programs from the Kth on, as K/N.")
@click.option("--sources", type=Path, help="The folder with the checkouts that programs of others need.")
@click.option("--keep", type=Path, help="A file for the outcomes: programs whose outcome it holds are not run again.")
def main(only: str, part: str, sources: Path | None, keep: Path | None) -> None:
    """Follow every advice and print what was promised beside what was saved."""
    warnings.simplefilter("ignore")
    journal = Journal(keep)
    prepare()
    try:
        for target in targets(only, sources, part, {one.program for one in journal.done}):
            try:
                outcome = follow(prepared(target))
            except OSError as error:
                outcome = Outcome(target.name, target.origin, left_out=[str(error)])
            say(outcome)
            journal.keep(outcome)
    except KeyboardInterrupt:
        print("interrupted: what follows is of the programs so far")
    sys.exit(0 if summarize(journal.done) else 1)


if __name__ == "__main__":
    main()
