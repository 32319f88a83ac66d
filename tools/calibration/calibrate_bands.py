"""Bands of convolutions and of whole steps, from models that no constant has seen.

Convolutions on tensor cores were never timed one by one, so their band is that of the steps that they take three tenths
of at least, or a tenth for depthwise ones.

A step's band is the mean of its kernels', by their time. The errors of kernels that were timed one by one cancel with
the root of the number of their classes; those of convolutions and of Inductor's kernels, whose bands are those of
whole steps, have cancelled already. By what, is one factor, which holds 80 % of the steps of four sets of equal
weight: timm's models eager and compiled (with the model's family left out), those of `make accuracy-transformers`,
and those of `make accuracy` that nothing was fitted on. It is cross-validated with each set left out.
"""

from __future__ import annotations

import numpy as np

from tools.calibration import calibrate_images
from tools.calibration.calibrate_cost import is_fitted
from tools.calibration.calibrate_images import RecordedSteps
from tools.corpus import recordings
from tools.corpus.recordings import Recording
from tools.docs import figures
from tools.fitting import (
    BANDS_HEAD,
    Array,
    Mask,
    Residuals,
    Tables,
    band_row,
    chosen,
    forget,
    rounded,
    stored,
    tables_of,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost import CostModel, bands
from windtunnel.cost.sustained import Limit

FROM_STEPS = {
    "convolutions": ("convolution ", 0.3),
    "direct convolutions": ("direct", 0.1),
}
"""Families whose bands are those of steps: how the names of their shares begin, and the least part of a step."""
GENERATED_PART = 0.2
"""The same of kernels that Inductor generates, in compiled steps."""
MARGIN = 0.8
FIGURES = {"images": "eager", "throughputs": "programs"}
"""Rows of docs/figures/steps.json that are not named as their set is."""


def kernels_of(recording: Recording) -> bands.Kernels:
    """A step's kernels, as its band sees them."""
    cost = CostModel(gpus.find(recording.gpu), recording.cuda)
    priced = [cost.kernel(one) for one in recording.signatures]
    counts = np.bincount([at for at in recording.order if at >= 0], minlength=len(priced)).tolist()
    found = bands.Kernels.of((n * one.duration_ns, one.known) for n, one in zip(counts, priced, strict=True))
    assert found is not None
    return found


def band_of(recording: Recording, limit: Limit | None = None) -> float:
    """The band that is printed for a step; `limit` is the power limit that it met."""
    return bands.of_step(kernels_of(recording), limit)


def part_of(steps: RecordedSteps, begins: str, levels: dict[str, int]) -> Array:
    """The part of each step that kernels take whose first share's name begins so."""
    total = np.zeros(len(steps.ms))
    part = np.zeros(len(steps.ms))
    for group in steps.groups:
        times = steps.times(group, tuple(levels[name] for name in group))
        total += times
        part += times if group and group[0].startswith(begins) else 0.0
    return part / total


def convolution_bands(found: calibrate_images.Found) -> None:
    """Write the bands of the families that only whole steps tell of."""
    rows: Tables = []
    for family, (begins, least) in FROM_STEPS.items():
        some = part_of(found.steps, begins, found.levels) >= least
        for distance, predicted, left_out in (
            ("own generation", found.left_out, "the model's family"),
            ("borrowed", found.of_gpu, "the GPU"),
        ):
            residuals = Residuals(distance, "", (found.steps.ms / predicted)[some])
            source = f"whole steps of timm's models with {least:.0%} of their time in them, {left_out} left out"
            rows.append(band_row(family, residuals, source))
    update_bands(tuple(FROM_STEPS), rows)


def generated_bands(found: calibrate_images.Found) -> None:
    """Write the bands of the kernels that Inductor generates: only whole compiled steps of one card tell of them."""
    some = part_of(found.steps, "generated ", found.levels) >= GENERATED_PART
    residuals = Residuals("own generation", "", (found.steps.ms / found.left_out)[some])
    source = f"whole steps of timm's compiled models with {GENERATED_PART:.0%} of their time in them"
    near = band_row("generated", residuals, f"{source}, the model's family left out")
    width = max(residuals.width(), bands.band("streams", "borrowed"))
    far = {"distance": "borrowed", "width": width, "n": 0, "source": "assumed: that of other kernels"}
    update_bands(("generated",), [near, ("band", near[1] | far)])


def others() -> dict[str, tuple[list[Recording], Array]]:
    """Recorded steps that nothing was fitted on, and published over predicted times."""
    throughputs = [one for one in recordings.read(recordings.THROUGHPUTS) if not fitted_or_old(one)]
    found = {"transformers": recordings.read(recordings.TRANSFORMERS), "throughputs": throughputs}
    return {name: (some, np.array([one.ratio() for one in some])) for name, some in found.items()}


def fitted_or_old(one: Recording) -> bool:
    """Whether a training program's row was fitted, or ran on software of 2020."""
    return is_fitted(one.model, one.gpu, one.group.split()[0]) or one.cuda < (11, 0)


def of_group(found: calibrate_images.Found, wanted: Mask) -> tuple[list[Recording], Array]:
    """The wanted steps, and published over predicted times with their family left out."""
    return chosen(found.steps.recordings, wanted), (found.steps.ms / found.left_out)[wanted]


def step_bands(found: calibrate_images.Found) -> None:
    """Write by what errors of kernels cancel, and print how many steps of each set are inside with it left out."""
    eager, compiled = of_group(found, ~found.is_compiled), of_group(found, found.is_compiled)
    sets = {"images": eager} | others() | {"compiled": compiled}
    needed = {name: factors_needed(*some) for name, some in sets.items()}
    factor = max(1.0, held_by(list(needed.values())))  # one class of kernels has nothing to cancel with
    source = "whole steps that nothing, or nothing of their family, was fitted on"
    row = {"factor": factor, "n": sum(map(len, needed.values())), "source": f"{source}: {', '.join(sets)}"}
    write("bands", BANDS_HEAD, [*tables_of({"band": stored("bands")["band"]}), ("step", row)])
    forget()
    print(f"step: {factor:.2f} times its kernels' mean band, over the root of the number of classes")
    inside = {}
    for name, (some, ratios) in sets.items():
        inside[name] = show(name, some, ratios)
        rest = held_by([one for other, one in needed.items() if other != name])
        print(f"{'':14} the set left out: {rest:.2f}, {np.mean(needed[name] <= rest):.0%} inside")
    figures.record("steps", {FIGURES.get(name, name): {"number": len(sets[name][0]), "inside": round(100 * part)}
                             for name, part in inside.items()})  # fmt: skip


def factors_needed(some: list[Recording], ratios: Array) -> Array:
    """Which factor each step needs to be inside its band; infinite where the mean of its bands is too narrow."""
    kernels = [kernels_of(one) for one in some]
    single, number, whole = np.array([(one.single, one.number, one.whole) for one in kernels]).T
    share = np.maximum(0.0, np.abs(ratios - 1.0) - whole) / np.maximum(single, 1e-9)
    found: Array = np.where(share > 1.0, np.inf, share * np.sqrt(number))
    return found


def held_by(needed: list[Array]) -> float:
    """The factor that holds so much of the steps of sets of equal weight as `MARGIN` says."""
    every = np.concatenate(needed)
    weights = np.concatenate([np.full(len(part), 1.0 / (len(needed) * len(part))) for part in needed])
    order = np.argsort(every)
    return rounded(every[order][np.searchsorted(np.cumsum(weights[order]), MARGIN)])


def show(name: str, some: list[Recording], ratios: Array) -> float:
    """The line of a set of steps: errors, and how many lay inside their band, which is returned."""
    widths = np.array([band_of(one) for one in some])
    errors = np.abs(1.0 / ratios - 1.0)
    inside = float(np.mean(np.abs(ratios - 1.0) <= widths))
    print(
        f"{name:14} {len(some):4} steps, median error {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}, "
        f"median band {np.median(widths):.0%}, {inside:.0%} inside"
    )
    return inside


def calibrate(found: calibrate_images.Found) -> None:
    """Write the bands that whole steps give."""
    convolution_bands(found)
    generated_bands(found)
    forget()
    step_bands(found)


def check() -> None:
    """How many steps lie inside the band that is printed for them."""
    for name, some in (
        ("images", recordings.read(recordings.EAGER_STEPS)),
        ("compiled", calibrate_images.compiled_recordings()),
    ):
        show(name, some, np.array([one.ratio() for one in some]))
    for name, (some, ratios) in others().items():
        show(name, some, ratios)
