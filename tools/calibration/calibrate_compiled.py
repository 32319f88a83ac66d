"""Judge the shares of `calibrate_images.py` by timm's compiled models: the compiled step, the speed-up and its ranking.

The rows are timm's results on an RTX 4090 (`compiled_models.csv`), their kernels those that the emulated programs
launched, eagerly and compiled (`record.py compiled` and `held-out`). The models of `compiled_steps.json.gz` are
fitted; those of `held_out_steps.json.gz`, which a seed of their own drew, judge the shares and nothing else. The error
of a speed-up is that of published over predicted times of both steps of a model. `make calibrate` prints both with the
model's family left out.
"""

from __future__ import annotations

from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np

from tools.calibration import calibrate_images
from tools.corpus import recordings, tables
from tools.corpus.outcomes import tau
from tools.corpus.recordings import COMPILED, COMPILED_STEPS, HELD_OUT_STEPS, Recording
from tools.docs import figures
from tools.fitting import Array, Residuals
from windtunnel import gpus
from windtunnel.cost import CostModel

EAGER = "eager"
HELD_OUT = f"held out by seed {recordings.HELD_OUT_SEED}"
ERRORS = (0.02, 0.05, 0.1)
"""Median errors for which `ceilings` says how well they rank."""


class Pairs(NamedTuple):
    """The recorded steps: compiled ones, and the eager step of the same model for each."""

    compiled: list[Recording]
    eager: list[Recording]


def pairs(held_out: bool = False) -> Pairs:
    """The recordings of the fitted rows, or of those that are held out."""
    found = recordings.read(HELD_OUT_STEPS if held_out else COMPILED_STEPS)
    of = {(one.model, one.cuda): one for one in found if one.group == EAGER}
    compiled = [one for one in found if one.group == COMPILED]
    return Pairs(compiled, [of[one.model, one.cuda] for one in compiled])


def step_ms(recordings: list[Recording]) -> Array:
    """Predicted milliseconds of each step."""
    return np.array([one.step_ns(CostModel(gpus.find(one.gpu), one.cuda)) / 1e6 for one in recordings])


def show(title: str, of: Pairs, compiled_ms: Array, eager_ms: Array) -> None:
    """A line of the compiled steps' errors, one of the eager steps', and one of the speed-ups'."""
    for kind, some, predicted_ms in ((COMPILED, of.compiled, compiled_ms), (EAGER, of.eager, eager_ms)):
        Residuals(kind, title, np.array([one.ms for one in some]) / predicted_ms).report()
    predicted, published = eager_ms / compiled_ms, published_speedups(of)
    errors = np.abs(predicted / published - 1.0)
    ranking = tau(list(zip(predicted.tolist(), published.tolist(), strict=True)))
    print(f"  speed-up, {title}: median error {median(errors.tolist()):.1%}, tau {ranking:.2f}")


def published_speedups(of: Pairs) -> Array:
    """Eager over compiled time as published."""
    return np.array([one.ms for one in of.eager]) / np.array([one.ms for one in of.compiled])


def show_left_out(found: calibrate_images.Found) -> None:
    """The errors with the model's family left out of the fit, for the compiled and the eager step at once."""
    at = {(one.model, one.cuda, one.gpu, one.group): row for row, one in enumerate(found.steps.recordings)}
    of = pairs()
    compiled = [at[one.model, one.cuda, one.gpu, COMPILED] for one in of.compiled]
    eager = [at[one.model, one.cuda, one.gpu, f"{one.gpu} infer nchw"] for one in of.eager]
    show("families of models left out", of, found.left_out[compiled], found.left_out[eager])
    predicted, published = found.left_out[eager] / found.left_out[compiled], published_speedups(of)
    figures.record("models", {"speedup": Residuals("", "", published / predicted).figures()})
    order = tau(list(zip(predicted.tolist(), published.tolist(), strict=True)))
    figures.record("models-tau", {"speedup": {"tau": round(order, 2)}})


def ceilings(speedups: Array) -> dict[float, float]:
    """The tau that predictions with independent errors of these medians would reach, by the speed-ups' own spread.

    Of two models whose speed-ups differ by d (in logarithms), errors of a standard deviation s leave the order right
    with the probability that a normal number lies below d / (s * sqrt(2)).
    """
    logs = np.log(speedups)
    apart = np.abs(logs[:, None] - logs[None, :])[np.triu_indices(len(logs), 1)]
    normal = NormalDist()
    found = {}
    for error in ERRORS:
        spread = error / normal.inv_cdf(0.75)
        right = [normal.cdf(gap / (spread * 2**0.5)) for gap in apart.tolist()]
        found[error] = 2.0 * float(np.mean(right)) - 1.0
    return found


def show_ceilings(of: Pairs) -> None:
    """How well the published speed-ups can be ranked at all: by their own spread, and by their noise."""
    rows = {row["model"]: float(row["speedup"]) for row in tables.read("compiled_models.csv") if row["suite"] == "timm"}
    for title, speedups in (("all rows", np.array(list(rows.values()))), ("these models", published_speedups(of))):
        reached = ", ".join(f"{error:.0%}: {ranking:.2f}" for error, ranking in ceilings(speedups).items())
        print(f"tau that independent errors of so much in the median would reach, {title}: {reached}")
    one, other = SAME_PROGRAM
    print(f"noise: the speed-ups of {one} and {other}, one program, differ by {abs(rows[one] / rows[other] - 1):.2%}")


def show_lost(of: Pairs, most: int = 8) -> None:
    """The models that most pairs of speed-ups are ranked wrongly with."""
    predicted, published = step_ms(of.eager) / step_ms(of.compiled), published_speedups(of)
    order = np.sign(predicted[:, None] - predicted[None, :]) * np.sign(published[:, None] - published[None, :])
    lost = np.sum(order < 0, axis=1)
    print(f"pairs of speed-ups that are ranked wrongly, of {len(lost) - 1} of each model:")
    for index in np.argsort(-lost, kind="stable")[:most].tolist():
        error = predicted[index] / published[index] - 1.0
        print(f"  {of.compiled[index].model:32} {lost[index]:3}  {published[index]:.2f}, predicted {error:+.1%}")


SAME_PROGRAM = "vit_base_patch16_224", "vit_base_patch16_224_miil"
"""Two models of one architecture, which differ by their weights alone."""


def check() -> None:
    """The errors of the shares as they are."""
    for title, of in (("as fitted", pairs()), (HELD_OUT, pairs(held_out=True))):
        show(title, of, step_ms(of.compiled), step_ms(of.eager))
    show_limits()


def show_limits() -> None:
    """The errors of all recorded models together, how well their speed-ups could be ranked, and where that fails."""
    fitted, held_out = pairs(), pairs(held_out=True)
    of = Pairs(fitted.compiled + held_out.compiled, fitted.eager + held_out.eager)
    show("all recorded", of, step_ms(of.compiled), step_ms(of.eager))
    show_ceilings(of)
    show_lost(of)
