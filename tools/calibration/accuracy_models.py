"""Predicted against published times of models that nothing, or only a few shares, was fitted on, by row.

    python tools/calibration/accuracy_models.py transformers            # FP32 transformers that NeuSight timed
    python tools/calibration/accuracy_models.py images [--most 100] [--unseen]    # timm (make accuracy-images)
    python tools/calibration/accuracy_models.py compiled [--most 10]    # timm, compiled (make accuracy-compiled)

For each GPU, mode and layout: the median and the 90th percentile of the error, the bias (of times: + is too slow),
Kendall's tau of the ranking of models, and how many rows lay inside the printed band. Of compiled models, those that
were recorded are priced from their recordings, fitted ones and those that a seed held out; others run, eagerly
and compiled: so many of timm's results (`--most`), or with `--dashboard` the training steps on an A100 that
TorchInductor's dashboard reported, of which excerpts sorted by speed-up were published.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import record_steps  # noqa: E402


class Outcome(NamedTuple):
    """A model in a group of rows: its predicted and its published time, in any unit, and the relative band printed."""

    model: str
    group: str
    predicted: float
    published: float
    band: float | None

    @property
    def ratio(self) -> float:
        return self.predicted / self.published

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the band around the predicted one."""
        return self.band is not None and abs(1.0 / self.ratio - 1.0) <= self.band


def tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's tau (a) of predicted and published figures."""
    signs = [
        ((a[0] > b[0]) - (a[0] < b[0])) * ((a[1] > b[1]) - (a[1] < b[1]))
        for a, b in combinations(pairs, 2)
        if a[1] != b[1]
    ]
    return sum(signs) / len(signs) if signs else 0.0


def summarize(outcomes: list[Outcome]) -> None:
    """A line for each group, and one for all that are times."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.group].append(one)
        if one.band is not None:
            groups["all"].append(one)
    for name, some in sorted(groups.items()):
        errors = sorted(abs(one.ratio - 1.0) for one in some)
        worst = errors[int(0.9 * (len(errors) - 1))]
        bias = median(one.ratio for one in some) - 1.0
        ranking = tau([(one.predicted, one.published) for one in some])
        banded = [one for one in some if one.band is not None]
        inside = f"{sum(one.inside for one in banded) / len(banded):.0%} inside their band" if banded else "no band"
        print(
            f"{name}: {len(some)} rows, median error {median(errors):.1%}, p90 {worst:.1%}, bias {bias:+.1%}, "
            f"tau {ranking:.2f}, {inside}"
        )


def show(one: Outcome) -> None:
    """The line of one row."""
    band = "no band" if one.band is None else f"band {one.band:.0%}"
    times = f"{one.predicted:10.1f} of {one.published:10.1f} ms {one.ratio - 1:+7.1%}"
    print(f"{one.model:32} {one.group:24} {times}  {band}", flush=True)


def transformers(only: str) -> list[Outcome]:
    """NeuSight's whole models."""
    import reference_transformers as of

    found = []
    for row in of.rows():
        if row.model.startswith(only):
            predicted, band = of.predict(row)
            found.append(Outcome(row.model, f"{row.gpu} {row.mode}", predicted, row.ms, band))
            show(found[-1])
    return found


def images(only: str, most: int, unseen: bool, without: tuple[str, ...]) -> list[Outcome]:
    """timm's results, in an order that a seed gives: of those that shares were fitted on, or of the others."""
    import reference_images as of

    timm = of.import_timm()
    fitted = {(one.model, one.group) for one in record_steps.read("image_steps.json.gz")}
    chosen = [row for row in of.in_order() if row.model.startswith(only)]
    chosen = [row for row in chosen if unseen != ((row.model, group_of(row)) in fitted)]
    chosen = [row for row in chosen if not row.model.startswith(without)]
    found = []
    for row in chosen[:most]:
        try:
            predicted, band = of.predict(timm, row)
        except RuntimeError as error:
            print(f"{row.model:32} {group_of(row):24} left out: {str(error).partition('. GPU')[0].splitlines()[0]}")
            continue
        published = 1000.0 * row.batch / row.throughput
        found.append(Outcome(row.model, group_of(row), predicted, published, band))
        show(found[-1])
    return found


def compiled(only: str, most: int) -> list[Outcome]:
    """timm's compiled results: recorded ones, fitted and held out, from their recordings, and others."""
    import calibrate_bands
    import calibrate_compiled

    found = []
    known = set()
    for name in ("fitted", calibrate_compiled.HELD_OUT):
        pairs = calibrate_compiled.pairs(held_out=name != "fitted")
        known |= {(one.model, one.cuda) for one in pairs.compiled}
        for kind, some in (("eager", pairs.eager), ("compiled", pairs.compiled)):
            predicted = calibrate_compiled.step_ms(some)
            for one, ms in zip(some, predicted.tolist(), strict=True):
                found.append(Outcome(one.model, f"{name} {kind}", ms, one.ms, calibrate_bands.band_of(one)))
                show(found[-1])
    return found + unseen(only, most, known)


def unseen(only: str, most: int, known: set[tuple[str, tuple[int, int]]]) -> list[Outcome]:
    """Rows of timm's compiled results that are not `known`, in an order that a seed gives."""
    if not most:
        return []
    import reference_compiled as of
    import reference_images

    timm = reference_images.import_timm()
    found: list[Outcome] = []
    for row in of.chosen(len(of.rows())):
        major, _, minor = row.cuda.partition(".")
        if (row.model, (int(major), int(minor))) in known or not row.model.startswith(only):
            continue
        try:
            run = of.run(timm, row)
        except RuntimeError as error:
            print(f"{row.model:32} left out: {str(error).partition('. GPU')[0].splitlines()[0][:120]}")
            continue
        for kind, step, images_per_s in (("eager", run.eager, row.eager), ("compiled", run.compiled, row.compiled)):
            published = 1000.0 * row.batch / images_per_s
            found.append(Outcome(row.model, f"unseen {kind}", step.ms, published, run.band))
            show(found[-1])
        if len(found) >= 2 * most:
            break
    return found


def speedups(outcomes: list[Outcome]) -> list[Outcome]:
    """Of models that ran both ways, eager over compiled time."""
    eager = {(one.model, one.group.removesuffix(" eager")): one for one in outcomes if one.group.endswith(" eager")}
    found = []
    for one in outcomes:
        set_name, _, kind = one.group.rpartition(" ")
        if kind == "compiled":
            other = eager[one.model, set_name]
            predicted, published = other.predicted / one.predicted, other.published / one.published
            found.append(Outcome(one.model, f"{set_name} speed-up", predicted, published, None))
    return found


def dashboard(only: str) -> list[Outcome]:
    """Speed-ups of training steps that TorchInductor's dashboard reported of an A100."""
    import reference_compiled as of
    import reference_images

    timm = reference_images.import_timm()
    found = []
    for row in of.dashboard_rows():
        if row.model.startswith(only):
            predicted = of.train(timm, row)
            found.append(Outcome(row.model, f"dashboard {row.kind}", predicted, row.speedup, None))
            print(f"{row.model:32} {row.kind:24} {predicted:.2f} of {row.speedup:.2f}", flush=True)
    return found


def group_of(row: Any) -> str:
    """The group of a row of timm's."""
    return f"{row.gpu} {row.mode} {row.layout}"


def layouts(outcomes: list[Outcome]) -> None:
    """Of models that were measured in both layouts, how many the prediction ranks rightly."""
    times = {(one.model, one.group): one for one in outcomes}
    right = total = 0
    for (model, group), one in times.items():
        other = times.get((model, group.replace("nchw", "nhwc")))
        if group.endswith("nchw") and other is not None and abs(one.published / other.published - 1.0) > 0.02:
            total += 1
            right += (one.predicted > other.predicted) == (one.published > other.published)
    if total:
        print(f"layouts: {right} of {total} models ranked rightly (those that differ by more than 2 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("transformers", "images", "compiled"))
    parser.add_argument("--only", default="", help="models whose names begin so")
    parser.add_argument("--most", type=int, help="how many rows of images (60), or of compiled models to run (10)")
    parser.add_argument("--dashboard", action="store_true", help="of compiled models, the dashboard's training steps")
    parser.add_argument("--unseen", action="store_true", help="rows of images that nothing was fitted on")
    parser.add_argument("--without", action="append", default=[], help="leave out images' models whose names begin so")
    options = parser.parse_args()
    if options.what == "transformers":
        summarize(transformers(options.only))
        return
    if options.what == "compiled":
        if options.dashboard:
            summarize(dashboard(options.only))
            return
        outcomes = compiled(options.only, 10 if options.most is None else options.most)
        summarize([*outcomes, *speedups(outcomes)])
        import calibrate_compiled

        calibrate_compiled.show_limits()
        return
    outcomes = images(options.only, options.most or 60, options.unseen, tuple(options.without))
    summarize(outcomes)
    layouts(outcomes)


if __name__ == "__main__":
    main()
