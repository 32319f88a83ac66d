"""`make advice`: every advice that a patch can follow is followed, and the change is held to what was promised.

Each program of `programs` is rehearsed. Where a finding promises a share of the step and its fault has a patch, the
patched program is rehearsed too: the step must get shorter, by the promised share within a factor of 1.5. Where
nothing is found, every patch is tried all the same, and none may save 3 %.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from programs import FAULTS, UNCAPTURED, Program, programs
from understudy import emulate
from understudy.judgement import WORTH, judge
from understudy.reports.parts.time import measure
from understudy.trace.finding import Finding

WITHIN = 1.5
NEEDED = 0.95


@dataclass
class Row:
    """One advice that was followed."""

    program: Program
    code: str
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


def rehearse(source: str, gpus: str, folder: Path, judged: bool = True) -> tuple[float, list[Finding]]:
    """The steady step in nanoseconds, and the findings."""
    path = folder / "program.py"
    path.write_text(source, "utf-8")
    with contextlib.redirect_stdout(io.StringIO()), emulate(gpus, no_data=True, assume=0.0) as session:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    session.complete()
    trace = session.trace.canonical()
    step_ns = measure(trace).step_ns
    assert step_ns is not None
    return step_ns, judge([trace]) if judged else []


def follow(program: Program, folder: Path) -> Iterator[Row]:
    """Every advice on a program that has a patch; where nothing is found, every patch."""
    before_ns, findings = rehearse(program.source(), program.gpus, folder)
    promises = {one.code: one for one in findings if one.severity != "info" and one.saved_share}
    for name, fault in FAULTS.items():
        promised = promises.get(fault.code)
        if promised is None or (fault.bad and name not in program.faults) or promised.saved_share is None:
            continue
        if name == "launches" and UNCAPTURED & set(program.faults):
            continue
        if name == "full precision" and "A100" not in program.gpus:
            continue
        after_ns, _ = rehearse(program.source(name), program.gpus, folder, judged=False)
        yield Row(program, fault.code, promised.saved_share, 1 - after_ns / before_ns)


@click.command()
@click.option("--only", default="", help="Programs whose names hold this.")
def main(only: str) -> None:
    """Follow every advice and print what was promised beside what was saved."""
    warnings.simplefilter("ignore")
    chosen = [program for program in programs() if only in program.name]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for program in chosen:
            for row in follow(program, Path(folder)):
                rows.append(row)
                mark = "" if row.kept else "  outside" if row.improved else "  NOT SHORTER"
                print(f"{program.name:64} {row.code:20} {row.promised:6.1%} {row.saved:6.1%}{mark}", flush=True)
    improved = sum(row.improved for row in rows)
    kept = sum(row.kept for row in rows)
    counts = f"{improved} improved, {kept} within a factor of {WITHIN}"
    print(f"{len(chosen)} programs, {len(rows)} promises of {WORTH:.0%} or more: {counts}")
    sys.exit(0 if rows and improved >= NEEDED * len(rows) and kept >= NEEDED * len(rows) else 1)


if __name__ == "__main__":
    main()
