"""The clock's exam (`make exam`).

    python -m tools.exam [CHECKOUT] [--gpu H100] [--only conv] [--least-ms 0.2] [--host NAME] [--rows] [--figures]

CHECKOUT is a clone of github.com/ScalingIntelligence/KernelBench with its history. Its programs run unmodified, without
data, and their times are compared with those that lie beside them: median, 90th percentile and bias of the error, and
the share inside the printed band, by machine and by kind of program. Only the odd numbers of level 1 are for whoever
works on the clock; the others judge it, and run with `--all`. The rows in exam/rows/ come first; without CHECKOUT,
alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from tools.corpus.outcomes import Outcome, middle_and_tail, show, summarize
from tools.docs import figures
from tools.exam import kernelbench, rows
from tools.exam.kernelbench import Program
from tools.fitting import Residuals, band_row, update_bands
from windtunnel import hosts

BANDS = {
    "convolutions, others": ("convolution, transposed", "convolution, 1-D", "convolution, 3-D"),
    "direct convolutions, others": ("convolution, depthwise",),
}
"""Families of kernels of which no network that was timed has any, and the kinds of programs that tell of them."""

IN_VIEW = 0.9
"""The part of the rows that a band holds here, and not four fifths: shares were chosen with these rows in view."""


def write_bands(found: list[tuple[Program, Outcome]]) -> None:
    """Write the bands that only these programs tell of."""
    written = []
    for family, kinds in BANDS.items():
        ratios = np.array([1.0 / one.ratio for program, one in found if program.family in kinds])
        source = f"KernelBench's level 1, odd numbers, nine machines: {'; '.join(kinds)}"
        kind, row = band_row(family, Residuals("borrowed", "", ratios), source)
        written.append((kind, row | {"width": float(np.quantile(np.abs(ratios - 1.0), IN_VIEW))}))
    update_bands(tuple(BANDS), written)


def entry(some: list[tuple[Program, Outcome]]) -> dict[str, str | float]:
    """The figures of a row of docs/exam.md: errors, share inside the range, and the program that is worst predicted."""
    middle, tail = middle_and_tail([one for _, one in some])
    worst, of = max(some, key=lambda pair: abs(np.log(pair[1].ratio)))
    return {
        "number": len(some),
        "median": round(100 * middle, 1),
        "p90": round(100 * tail),
        "inside": round(100 * sum(one.inside for _, one in some) / len(some)),
        "worst": f"{worst.name.split('_')[0]} on {of.group.split()[0]}: {of.ratio:.2g} times as long",
    }


def write_figures(found: list[tuple[Program, Outcome]]) -> None:
    """Write the tables of docs/exam.md: by machine, and by kind of program."""
    machines: dict[str, list[tuple[Program, Outcome]]] = defaultdict(list)
    kinds: dict[str, list[tuple[Program, Outcome]]] = defaultdict(list)
    for pair in found:
        machines[pair[1].group].append(pair)
        kinds[pair[0].family].append(pair)
    table = {}
    for name, some in machines.items():
        gpu, commit = name.split()
        release = next(edition.release for edition in kernelbench.EDITIONS if edition.commit == commit)
        table[f"{gpu}-{commit}"] = {"what": f"{gpu}, {release}" if release else gpu, **entry(some)}
    figures.record("exam", table | {"all": {"what": "all", **entry(found)}})
    figures.record("exam-kinds", {name: {"what": name, **entry(some)} for name, some in sorted(kinds.items())})


def main() -> None:
    """Run the exam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", help="a clone of KernelBench")
    parser.add_argument("--gpu", default="", help="only machines whose GPU's name begins so")
    parser.add_argument("--only", default="", help="only programs with this word in their names")
    parser.add_argument("--least-ms", type=float, default=0.0, help="only programs that took at least so long")
    parser.add_argument("--host", default=hosts.DEFAULT, help=f"who issues the work  [default: {hosts.DEFAULT}]")
    parser.add_argument("--rows", action="store_true", help="a line for each program")
    parser.add_argument("--all", action="store_true", help="those that are held back too; not for work on the clock")
    parser.add_argument("--bands", action="store_true", help="write the bands that only these programs tell of")
    parser.add_argument("--figures", action="store_true", help="write the tables of docs/exam.md")
    options = parser.parse_args()
    if options.figures and (options.gpu or options.only or options.least_ms or options.all):
        parser.error("--figures writes the tables of all programs: leave --gpu, --only, --least-ms and --all out")
    shared = [show(one) if options.rows else one for one in rows.outcomes(options.gpu)]
    if options.checkout is None and not shared:
        parser.error(f"there is no row in {rows.FOLDER}: name a clone of KernelBench")
    summarize(shared)
    if options.checkout is None:
        return
    found = []
    for program, one in kernelbench.outcomes(options.checkout, options.gpu, options.only, options.all, options.host):
        if one.published >= options.least_ms:
            found.append((program, show(one) if options.rows else one))
    summarize(one for _, one in found)
    print()
    summarize(one._replace(group=f"level {program.level}, {program.family}") for program, one in found)
    if options.bands and not options.all:
        write_bands(found)
    if options.figures:
        write_figures(found)


if __name__ == "__main__":
    main()
