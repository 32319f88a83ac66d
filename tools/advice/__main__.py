"""`make advice`: every advice that a patch can follow is followed, and the change is held to what was promised.

Each program is rehearsed. Where a finding promises a share of the step and there is a patch, by hand (`loops.py`,
`patches.toml`) or one that fits any program (`rewriting.py`), the patched program is rehearsed too: the step must get
shorter, by the promised share within a factor of 1.5. The patches that fit any program are tried on all of them, so
that what a finding should have promised is seen: where a run is long enough to be judged, none may save 3 % that
nothing promised. Where the verdict is that there is nothing to fix, the patches by hand are tried as well.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click
from rehearsal import prepare, rehearse
from targets import Target, prepared, targets

from understudy.judgement import SHORT, WORTH
from understudy.trace.finding import Finding

WITHIN = 1.5
NEEDED = 0.95


@dataclass
class Row:
    """One advice that was followed."""

    target: Target
    what: str
    promised: float
    saved: float

    @property
    def improved(self) -> bool:
        """Whether the step got shorter."""
        return self.saved > 0

    @property
    def kept(self) -> bool:
        """Whether what was saved is within a factor of 1.5 of what was promised."""
        return self.improved and self.promised / WITHIN <= self.saved <= self.promised * WITHIN


@dataclass
class Tally:
    """What has been seen so far."""

    programs: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    tried: int = 0
    nothing_to_fix: list[str] = field(default_factory=list)
    too_short: int = 0
    unfollowed: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)


def promised(findings: list[Finding], code: str, fix: str) -> float:
    """The share that findings of a code, or with a fix, promise together; waits that hide one another promise once."""
    found = [one for one in findings if one.saved_share and (one.code == code or (not code and one.fix == fix))]
    shares = {(one.site.file, one.site.line): one.saved_share or 0.0 for one in found}
    together = [one for one in found if "and the other waits" in one.message]
    return max(shares.values()) if together else min(1.0, sum(shares.values()))


def follow(target: Target, tally: Tally) -> None:
    """Follow every advice on a program that has a patch, and try the fixes that nothing promised."""
    before = rehearse(target.job)
    if before.failed:
        tally.left_out.append(f"{target.name}: {before.failed}")
    if before.failed or not before.kernels:
        return
    tally.programs[target.origin] += 1
    worth = [one for one in before.findings if one.severity != "info" and (one.saved_share or 0.0) >= WORTH]
    short = before.kernels < SHORT
    tally.too_short += short and not worth
    nothing = not short and not any(one.severity in ("error", "warning") for one in before.findings)
    tally.nothing_to_fix += [target.name] if nothing else []
    followed: set[str] = set()
    for change in target.changes:
        share = promised(worth, change.code, change.fix)
        codes = {one.code for one in worth if one.code == change.code or (not change.code and one.fix == change.fix)}
        tried = share or (nothing if change.code else not change.promised)
        if not tried or (codes and codes <= followed):
            continue
        after = rehearse(change.job._replace(judged=False))
        if not after.failed and after.hazards > before.hazards:
            tally.left_out.append(f"{target.name}: the patch of {change.code or change.fix} has a race of its own")
        if after.failed or after.hazards > before.hazards:
            continue
        row = Row(target, change.code or change.fix, share, after.share_of(before))
        if share:
            tally.rows.append(row)
            followed |= codes
            say(row)
        elif not short:
            tally.tried += 1
            noted = promised(list(before.findings), change.code, change.fix)
            if row.saved >= WORTH and row.saved > WITHIN * noted:
                tally.missed.append(row)
                verdict = ", and the verdict is 'nothing to fix'" if nothing else ""
                print(f"{target.name:58} {row.what:20} nothing promised, {row.saved:6.1%} saved{verdict}", flush=True)
    tally.unfollowed.update({one.code for one in worth} - followed)


def say(row: Row) -> None:
    """Print an advice that was followed."""
    mark = "" if row.kept else "  outside" if row.improved else "  NOT SHORTER"
    print(f"{row.target.name:58} {row.what:20} {row.promised:6.1%} {row.saved:6.1%}{mark}", flush=True)


@click.command()
@click.option("--only", default="", help='Programs whose names hold this: "corpus", "loop: encoder", "nanoGPT".')
@click.option("--part", default="1/1", help="Every Nth of these programs from the Kth on, as K/N.")
@click.option("--sources", type=Path, help="The folder with the checkouts that programs of others need.")
def main(only: str, part: str, sources: Path | None) -> None:
    """Follow every advice and print what was promised beside what was saved."""
    warnings.simplefilter("ignore")
    prepare()
    tally = Tally()
    try:
        for target in targets(only, sources, part):
            try:
                follow(prepared(target), tally)
            except OSError as error:
                tally.left_out.append(f"{target.name}: {error}")
    except KeyboardInterrupt:
        print("interrupted: what follows is of the programs so far")
    for reason in tally.left_out:
        print(f"not run: {reason}")
    for origin, count in tally.programs.items():
        rows = [row for row in tally.rows if row.target.origin == origin]
        improved, kept = sum(row.improved for row in rows), sum(row.kept for row in rows)
        print(f"{origin}: {count} programs, {len(rows)} promises followed, {improved} improved, {kept} kept")
    improved, kept = sum(row.improved for row in tally.rows), sum(row.kept for row in tally.rows)
    counts = f"{improved} improved, {kept} within a factor of {WITHIN}"
    print(f"{tally.programs.total()} programs, {len(tally.rows)} promises of {WORTH:.0%} or more followed: {counts}")
    print(f"not followed, for want of a patch: {dict(tally.unfollowed) or 'none'}")
    wrong = {row.target.name for row in tally.missed} & set(tally.nothing_to_fix)
    print(
        f"{tally.tried} fixes that nothing promised tried on runs of {SHORT:,} kernels or more: {len(tally.missed)} "
        f"saved {WORTH:.0%}"
    )
    print(
        f"verdict 'nothing to fix' on {len(tally.nothing_to_fix)} programs, {len(wrong)} of them wrong; too short to "
        f"judge: {tally.too_short}"
    )
    wanted = NEEDED * len(tally.rows)
    sys.exit(0 if tally.rows and improved >= wanted and kept >= wanted and not tally.missed else 1)


if __name__ == "__main__":
    main()
