"""The clock's exam (`make exam`).

    python -m tools.exam [CHECKOUT] [--gpu H100] [--only conv] [--least-ms 0.2] [--host NAME] [--rows] [--figures]
    python -m tools.exam CHECKOUT --left-out    # and constants set by hand, with programs, GPUs and kinds left out

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

from tools.calibration import calibrate_neighbours
from tools.corpus.outcomes import Outcome, figures_of, show, summarize
from tools.docs import figures
from tools.exam import kernelbench, left_out, others, rows, scales
from tools.exam.kernelbench import Row
from tools.fitting import OF_EXAM, Residuals, band_row, update_bands
from windtunnel import gpus, hosts
from windtunnel.cost import bands, neighbours

OTHERS = ("convolution, transposed", "convolution, 1-D", "convolution, 3-D")
"""Kinds of programs of convolutions of which no network that was timed has any."""


def family_of(row: Row) -> str:
    """The family of kernels, of OF_EXAM, that a program tells of; empty where others tell of its kernels too."""
    if row.program.family == "convolution, depthwise":
        return "direct convolutions, others"
    if row.program.family not in OTHERS:
        return ""
    longest, _ = max(row.kernels, key=lambda one: one[1])
    dims = "volumes" if len(longest.shapes[0]) == 5 else "planes"
    in_tf32 = ("tf32", 1) in longest.detail and "tf32" in gpus.find(row.gpu).peak_flops
    return f"convolutions, {dims}{'' if in_tf32 else ' fp32'}"


def write_bands(found: list[Row], unseen: list[Row]) -> None:
    """Write the bands that only these programs tell of: with the program left out, where constants were set on it.

    Programs that the host bounds say nothing of kernels.
    """
    bound = (row for row in found if left_out.is_of_kernels(row))
    seen = {(row.program, row.outcome.group): row for row in (*bound, *unseen)}
    written = []
    for family in OF_EXAM:
        some = [row for row in seen.values() if family_of(row) == family]
        numbers = sorted({str(row.program.number) for row in some}, key=int)
        source = f"KernelBench's level 1, nine machines, the program left out: {', '.join(numbers)}"
        for generation, mine in {**by_generation(some), "": some}.items():
            ratios = np.array([1.0 / row.outcome.ratio for row in mine])
            written.append(band_row(family, Residuals("borrowed", generation, ratios), source))
    update_bands(OF_EXAM, written)


def write_scales(found: list[Row]) -> None:
    """Write by what the bands of a GPU's kernels are multiplied, as these programs and those of others need it."""
    every = [(row.outcome, row.gpu) for row in found]
    every += [(one, one.group) for one in map(others.outcome, others.times())]
    scales.calibrate(scales.needed(every))


def by_generation(some: list[Row]) -> dict[str, list[Row]]:
    """The rows of each generation that has enough of them."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in some:
        found[gpus.find(row.gpu).generation].append(row)
    return {generation: rows for generation, rows in sorted(found.items()) if len(rows) >= LEAST_ROWS}


LEAST_ROWS = 12
"""Fewer rows of a generation say less of its bands than those of all."""


def entry(some: list[Row]) -> dict[str, str | float]:
    """The figures of a row of docs/exam.md: errors, share inside the range, and the program that is worst predicted."""
    rows = {row.outcome: row for row in some}
    return figures_of([row.outcome for row in some], lambda one: f"{rows[one].program.number} on {rows[one].gpu}")


def own_kernels() -> dict[str, dict[str, str | float | None]]:
    """Rows of docs/exam.md for GPUs whose own kernels were measured."""
    tables = calibrate_neighbours.tables()
    every = iter(calibrate_neighbours.left_out([one for _, _, timings in tables for one in timings]))
    rows: dict[str, dict[str, str | float | None]] = {}
    for gpu, _, timings in tables:
        some = [next(every) for _ in timings]
        outcomes = [Outcome(one.timing.name, gpu.key, 1.0 / one.ratio, 1.0, width_of(one)) for one in some]
        what = f"{gpu.key.split('-')[0]}, kernels of its own, each left out"
        rows[gpu.key] = {"what": what, **figures_of(outcomes, lambda one: one.model)}
    return rows


def width_of(one: calibrate_neighbours.LeftOut) -> float:
    """The band of a kernel beside the others of its kind."""
    return neighbours.widened(one.away) * bands.band(f"neighbours {one.timing.class_name}", "own GPU")


def write_figures(found: list[Row]) -> None:
    """Write the tables of docs/exam.md: by machine, and by kind of program."""
    machines: dict[str, list[Row]] = defaultdict(list)
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        machines[row.outcome.group].append(row)
        kinds[row.program.family].append(row)
    table: dict[str, dict[str, str | float | None]] = {}
    for name, some in machines.items():
        gpu, commit = name.split()
        release = next(edition.release for edition in kernelbench.EDITIONS if edition.commit == commit)
        table[f"{gpu}-{commit}"] = {"what": f"{gpu}, {release}" if release else gpu, **entry(some)}
    figures.record("exam", table | {"all": {"what": "all", **entry(found)}} | own_kernels())
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
    parser.add_argument("--left-out", action="store_true", help="constants set by hand, fitted with rows left out")
    parser.add_argument("--bands", action="store_true", help="write the bands that only these and others' tell of")
    parser.add_argument("--figures", action="store_true", help="write the tables of docs/exam.md")
    options = parser.parse_args()
    if (options.figures or options.bands) and (options.gpu or options.only or options.least_ms or options.all):
        parser.error("--figures and --bands are of all programs: leave --gpu, --only, --least-ms and --all out")
    shared = [show(one) if options.rows else one for one in rows.outcomes(options.gpu)]
    if options.checkout is None and not shared:
        parser.error(f"there is no row in {rows.FOLDER}: name a clone of KernelBench")
    summarize(shared)
    if options.checkout is None:
        return
    if options.bands:
        scales.remove()
    found = []
    for row in kernelbench.outcomes(options.checkout, options.gpu, options.only, options.all, options.host):
        if row.outcome.published >= options.least_ms:
            found.append(row)
            if options.rows:
                show(row.outcome)
    summarize(row.outcome for row in found)
    print()
    summarize(row.outcome._replace(group=f"level {row.program.level}, {row.program.family}") for row in found)
    if (options.left_out or options.bands) and not options.all:
        sets = left_out.cross_validate(found)
        left_out.show(sets)
        if options.figures:
            figures.record("exam-left-out", {name: {"what": name, **entry(some)} for name, some in sets.items()})
        if options.bands:
            write_bands(found, sets["program left out"])
            write_scales(found)
    if options.figures:
        write_figures(found)


if __name__ == "__main__":
    main()
