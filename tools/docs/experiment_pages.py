"""Write docs/experiments/ from runs of the experiments: one page each with its numbers and plots, and a table of all.

A run takes minutes, so a page is written again only when what makes its numbers has changed since: the experiment, the
cost model, the catalogue. A digest of these files is the page's last line; --force is for a change of the pages' look.

python -m tools.docs.experiment_pages              # write the pages that are out of date
python -m tools.docs.experiment_pages matmul --force   # write these, out of date or not
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools import ROOT
from windtunnel import experiments
from windtunnel.cli.experiment import perform
from windtunnel.experiments import Result, _charts, _text
from windtunnel.experiments._result import Axis, Plot, Timeline

FOLDER = ROOT / "docs" / "experiments"
PACKAGE = ROOT / "src" / "windtunnel"
COLOURS = ("#3d7edb", "#e08a1e", "#2a9d6f", "#c9463d", "#9b5de5", "#7a8796", "#c2a83e", "#4fb3bf")
INK = "#7a8796"  # seen on white and on black: a picture does not know the page's theme
GPUS = {"scaling": "8xV100"}  # the others run on two
SOURCES = (".py", ".toml")
DIGEST = "<!-- from a run of {} -->\n"
INDEX = """# Experiments

Each experiment is a small program of windtunnel's own library that answers a question of the documents on the machine
that it runs on: `windtunnel experiment NAME`. Without a GPU, `--gpus 2xV100` emulates two; then the GPU's numbers are
modelled, with the host `reference`, and the CPU's measured where the page was made. A page has a table, plots, and two
sentences that follow from the numbers of its run.

| experiment | question |
| --- | --- |
"""


def digest(name: str) -> str:
    """What the numbers of a page depend on, in 16 letters: experiment, measuring, cost model, catalogue."""
    folder = PACKAGE / "experiments"
    files = [folder / f"{name.replace('-', '_')}.py", folder / "_measure.py"]
    files += [path for part in ("cost", "gpus") for path in (PACKAGE / part).rglob("*") if path.suffix in SOURCES]
    sums = hashlib.sha256()
    for path in sorted(files):
        sums.update(path.read_bytes())
    return sums.hexdigest()[:16]


def page(result: Result, pictures: list[str]) -> str:
    """One experiment's page."""
    title, _, about = experiments.documentation(result.name).partition("\n")
    parts = [f"# {title}", about.strip(), "## What a run shows", f"```console\n{result.command}\n```"]
    parts += [f"**{' '.join(result.conclusion)}**", "\n".join(f"- {line}" for line in _origins(result))]
    for plot, picture in zip(result.plots, pictures, strict=True):
        parts.append(f"![{_text.spoken(result, plot)}]({picture})")
    for table in result.tables:
        parts += [f"### {table.title}", _text.markdown_table(result, table).rstrip()]
    return "\n\n".join(part for part in parts if part) + "\n\n" + DIGEST.format(digest(result.name))


def _origins(result: Result) -> list[str]:
    stamp = ["EMULATED: the numbers of the GPU are modelled."] if result.emulated else []
    return [*stamp, *result.provenance(), *result.notes]


# ---------------------------------------------------------------------- pictures


def picture(result: Result, plot: Plot | Timeline) -> str:
    """A plot as an SVG that is the same for the same numbers."""
    settings: Any = {
        "svg.hashsalt": plot.title, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.prop_cycle": cycler(color=COLOURS),
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set_title(plot.title, color=INK)
        axes.grid(color=INK, alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)
        _draw_timeline(axes, plot) if isinstance(plot, Timeline) else _draw(axes, result, plot)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)


def _draw(axes: Axes, result: Result, plot: Plot) -> None:
    if plot.kind == "bars":
        _draw_bars(axes, result, plot)
    else:
        for series in plot.series:
            points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if y is not None]
            line = "none" if plot.kind == "marks" else "--" if "modelled" in result.origin(series.of) else "-"
            axes.plot(*zip(*points, strict=True), marker="o", ms=4, ls=line, label=_text.label(result, series))
        _scale(axes, "x", plot.x, [x for series in plot.series for x in series.xs if not isinstance(x, str)])
    axes.set_xlabel(plot.x.label)
    axes.set_ylabel(plot.y.label)
    _scale(axes, "y", plot.y, [y for series in plot.series for y in series.ys if y is not None])


def _draw_bars(axes: Axes, result: Result, plot: Plot) -> None:
    names = list(dict.fromkeys(str(x) for series in plot.series for x in series.xs))
    width = 0.8 / len(plot.series)
    for number, series in enumerate(plot.series):
        places = [names.index(str(x)) + (number - (len(plot.series) - 1) / 2) * width for x in series.xs]
        heights = [0.0 if y is None else y for y in series.ys]
        axes.bar(places, heights, width, label=_text.label(result, series))
    long = max(map(len, names)) * len(names) > 60
    axes.set_xticks(range(len(names)), names, rotation=25 if long else 0, ha="right" if long else "center")


def _scale(axes: Axes, which: str, axis: Axis, numbers: list[float]) -> None:
    positive = [number for number in numbers if number > 0]
    if axis.log and positive:
        axes.set(**{f"{which}scale": "log"})
        marks = _charts.ticks(axis, min(positive), max(positive))
    elif axis.unit and positive:
        marks = _charts.even_ticks(max(positive), axis.unit)
    else:
        return
    getattr(axes, f"set_{which}ticks")(*zip(*marks, strict=True))
    getattr(axes, f"{which}axis").minorticks_off()


def _draw_timeline(axes: Axes, plot: Timeline) -> None:
    start = min(bar.begin_s for bar in plot.bars)
    lanes = list(reversed(plot.lanes))
    for number, name in enumerate(dict.fromkeys(bar.name for bar in plot.bars)):
        for row, lane in enumerate(lanes):
            bars = [bar for bar in plot.bars if (bar.name, bar.lane) == (name, lane)]
            spans = [(bar.begin_s - start, bar.end_s - bar.begin_s) for bar in bars]
            label = name if row == len(lanes) - 1 else None
            axes.broken_barh(spans, (row - 0.35, 0.7), color=COLOURS[number], label=label)
    axes.set_yticks(range(len(lanes)), lanes)
    marks = _charts.even_ticks(max(bar.end_s for bar in plot.bars) - start, "s")
    axes.set_xticks([at for at, _ in marks], [text for _, text in marks])


# ---------------------------------------------------------------------- the folder


def write(name: str) -> None:
    """Run one experiment and write its page and pictures."""
    result = perform(name, GPUS.get(name, "2xV100"))
    for old in FOLDER.glob(f"{name}-[0-9]*.svg"):
        old.unlink()
    pictures = [f"{name}-{number}.svg" for number in range(1, len(result.plots) + 1)]
    for plot, file in zip(result.plots, pictures, strict=True):
        (FOLDER / file).write_text(picture(result, plot), "utf-8")
    (FOLDER / f"{name}.md").write_text(page(result, pictures), "utf-8")


def is_current(name: str) -> bool:
    """Whether the page of an experiment was made from what there is."""
    path = FOLDER / f"{name}.md"
    return path.is_file() and path.read_text("utf-8").endswith(DIGEST.format(digest(name)))


def main() -> int:
    """Write what is out of date; the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/experiments/ from runs of the experiments.")
    parser.add_argument("names", nargs="*", help="experiments to write; all when none is named")
    parser.add_argument("--force", action="store_true", help="write pages that are up to date as well")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or experiments.names():
        if arguments.force or not is_current(name):
            print(f"running the experiment {name}", file=sys.stderr)
            write(name)
    for path in FOLDER.glob("*.md"):
        if path.stem not in (*experiments.names(), "index"):
            path.unlink()
    rows = [f"| [{name}]({name}.md) | {experiments.title(name)} |" for name in experiments.names()]
    (FOLDER / "index.md").write_text(INDEX + "\n".join(rows) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
