"""Fit what compiled image models tell: shares of Inductor's kernels, and of convolutions with channels last.

    python tools/calibration/calibrate_compiled.py            # writes generated.toml and convolutions.toml
    python tools/calibration/calibrate_compiled.py --check    # fits nothing: the errors of the shares as they are

The rows are timm's results of compiled models on an RTX 4090 (`compiled_models.csv`), their kernels those that the
emulated programs launched (`compiled_steps.json.gz`, by `record_steps.py compiled`). The first `FITTED` models are
fitted; the others judge the shares, unseen. The search is that of
`calibrate_images.py`, whose constants it takes as they are; families of models are left out by fifths. The error of a
speed-up is that of published over predicted times of both steps of a model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import calibrate_images  # noqa: E402
import record_steps  # noqa: E402
from accuracy_models import tau  # noqa: E402
from calibrate_images import Share, Steps, folds  # noqa: E402
from calibrate_products import Array, Residuals, report, write  # noqa: E402
from record_steps import Recording  # noqa: E402

from understudy import gpus  # noqa: E402
from understudy.cost import CostModel, operators  # noqa: E402
from understudy.cost.families import convolutions, direct_convolutions, generated  # noqa: E402
from understudy.cost.operators import classify, plain  # noqa: E402
from understudy.trace.operation import Signature  # noqa: E402

RECORDINGS = "compiled_steps.json.gz"
SOURCE = "fitted: timm's published results, compiled, AMP, torch 2.4 and 2.9 (compiled_models.csv)"
HEAD = "Kernels that Inductor generates: the shares of cost/families/generated.py."
PULL = 0.05
"""What moves a share as far as the rows ask for it where they agree, and holds it where two or three of them tell."""
COMPILED, EAGER = "compiled", "eager"
FITTED = 24
"""How many of the recorded models are fitted, in the order that a seed gave."""


def _generated(name: str, begin: float) -> Share:
    return Share("generated", "share", (("name", name),), begin, 1.0, SOURCE)


MOST = {"direct channels last": 1.0, "narrow groups channels last": 8.0}
"""What a share can be at most, where that is not twice the products' rate: of a bandwidth, of half-empty tiles."""


def _convolutions(name: str, begin: float) -> Share:
    return Share("convolutions", "share", (("name", name),), begin, MOST.get(name, 2.0), SOURCE)


SHARES = {
    "generated pointwise": _generated("pointwise", 1.0),
    "generated layout": _generated("layout", 0.9),
    "generated persistent reduction": _generated("persistent reduction", 1.0),
    "generated reduction": _generated("reduction", 0.8),
    "channels last": _convolutions("channels last", 1.0),
    "pointwise channels last": _convolutions("pointwise channels last", 1.0),
    "grouped channels last": _convolutions("grouped channels last", 0.7),
    "narrow groups channels last": _convolutions("narrow groups channels last", 4.0),
    "direct channels last": _convolutions("direct channels last", 0.8),
}


def shares_of(recording: Recording, signature: Signature) -> tuple[str, ...]:
    """The shares that decide the price of a kernel."""
    operator = classify(signature.name)
    if operator.name in generated.CLASSES:
        return (f"generated {generated.kind_of(dict(signature.detail))}",)
    if operator.name != "convolution" or ("channels_last", 1) not in signature.detail:
        return ()
    name = plain(signature.name)
    model = CostModel(gpus.find(recording.gpu), recording.cuda)
    problem = model.problem(signature, name, *model._precision(signature, operator, name))
    if direct_convolutions.is_direct(problem):
        return (direct_convolutions.share_name(problem),)
    sizes = convolutions.sizes(problem)
    return () if sizes is None else (convolutions.last_name(sizes[0]),)


class Pairs(NamedTuple):
    """The recorded steps: compiled ones, and the eager step of the same model for each."""

    compiled: list[Recording]
    eager: list[Recording]


def pairs(unseen: bool = False) -> Pairs:
    """The recordings of the fitted rows, or of the others."""
    found = record_steps.read(RECORDINGS)
    of = {(one.model, one.cuda): one for one in found if one.group == EAGER}
    compiled = [one for one in found if one.group == COMPILED]
    compiled = compiled[FITTED:] if unseen else compiled[:FITTED]
    return Pairs(compiled, [of[one.model, one.cuda] for one in compiled])


def step_ms(recordings: list[Recording]) -> Array:
    """Predicted milliseconds of each step."""
    return np.array([one.step_ns(CostModel(gpus.find(one.gpu), one.cuda)) / 1e6 for one in recordings])


def show(title: str, compiled_ms: Array, of: Pairs) -> None:
    """A line of the compiled steps' errors, and one of the speed-ups'."""
    residuals = Residuals("", title, np.array([one.ms for one in of.compiled]) / compiled_ms)
    report(residuals, residuals.width())
    predicted = step_ms(of.eager) / compiled_ms
    published = np.array([one.ms for one in of.eager]) / np.array([one.ms for one in of.compiled])
    errors = np.abs(predicted / published - 1.0)
    ranking = tau(list(zip(predicted.tolist(), published.tolist(), strict=True)))
    print(f"  speed-up, {title}: median error {median(errors.tolist()):.1%}, tau {ranking:.2f}")


def cross_validate(steps: Steps, begin: dict[str, int]) -> Array:
    """Predicted times where the row's family was left out."""
    left_out, mine = np.empty(len(steps.ms)), folds(steps.recordings)
    for fold in sorted(set(mine.tolist())):
        left_out[mine == fold] = steps.predict(steps.fit(mine != fold, begin))[mine == fold]
    return left_out


class Found(NamedTuple):
    """The compiled steps, the levels that were fitted, and published over predicted times with families left out."""

    steps: Steps
    levels: dict[str, int]
    left_out: Array


def begin() -> None:
    """Shares before anything is fitted."""
    for share in SHARES.values():
        share.set(share.begin)
    calibrate_images.clear()
    save()


def save() -> None:
    """Write the shares as they are into their files."""
    for file, head in {"generated": HEAD, "convolutions": calibrate_images.HEAD}.items():
        write(file, head, [(kind, row) for kind, rows in operators.read(file).items() for row in rows])


def calibrate() -> Found:
    """Fit, cross-validate and write the shares."""
    of = pairs()
    begin()
    steps = Steps(of.compiled, SHARES, shares_of, PULL)
    levels = steps.fit(np.ones(len(steps.ms)))
    for name, share in SHARES.items():
        print(f"  {name:32} {share.value(levels[name]):.3f}")
    left_out = cross_validate(steps, levels)
    for name, share in SHARES.items():
        share.set(share.value(levels[name]))
    calibrate_images.clear()
    show("families of models left out", left_out, of)
    save()
    return Found(steps, levels, steps.ms / left_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fit nothing: print the errors of the shares as they are")
    if not parser.parse_args().check:
        calibrate()
    of = pairs()
    show("as fitted", step_ms(of.compiled), of)
    others = pairs(unseen=True)
    if others.compiled:
        show("unseen", step_ms(others.compiled), others)


if __name__ == "__main__":
    main()
