"""Fit what only whole models tell: shares of convolutions, generated kernels, normalizations, pools and bandwidth.

The rows are timm's results, eager (`image_models.csv`) and compiled (`compiled_models.csv`), their kernels those that
the emulated programs launched (`image_steps.json.gz`, `compiled_steps.json.gz`). All shares are
fitted together, since a model's eager and compiled step have most of them in common. A share is a power of 1.02; the
search goes up and down one share after the other and takes what lowers the mean of |log(predicted / published)|, cut at
0.6, in which each group of GPU, mode and layout weighs as the root of its number of rows, and a share of few rows costs
a little where it leaves its beginning. Families of models are left out by fifths, eager and compiled at once, and each
GPU by the other.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tools.calibration import calibrate_cost, calibrate_streams
from tools.corpus import recordings as corpus
from tools.corpus.recordings import COMPILED, COMPILED_STEPS, EAGER_STEPS, IMAGES, Recording
from tools.docs import figures
from tools.fitting import (
    Array,
    Mask,
    Residuals,
    fold_of,
    forget_shares,
    left_out,
    report_groups,
    search,
    tables_of,
    write,
)
from windtunnel import gpus
from windtunnel.cost import CostModel, files, neighbours
from windtunnel.cost.families import (
    convolutions,
    direct_convolutions,
    generated,
    looped_convolutions,
    scans,
    streams,
)
from windtunnel.cost.families.problem import Problem
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature

GENERATED_HEAD = "Kernels that Inductor generates: the shares of cost/families/generated.py."
CONVOLUTIONS_HEAD = "Convolutions: the shares of cost/families/convolutions.py and direct_convolutions.py."
HELD, PULL = 0.003, 0.01
"""What it costs a share to leave its beginning: it goes as far as the rows ask for it where they agree, and stays where
few of them tell. Without it the error is the same for shares that differ by half, and the search found one set of them
or another by where it began. The larger one is for shares that two or three rows tell of, and those of compiled models.
"""
STEP = 1.02
CLIP = 0.6
Levels = tuple[int, ...]


class Share(NamedTuple):
    """One share to fit: the file of `cost/data` and the table it is in, the row's keys, and where the search begins."""

    file: str
    table: str
    row: tuple[tuple[str, str], ...]
    begin: float
    most: float = 1.6
    source: str = IMAGES
    pull: float = HELD

    def value(self, level: int) -> float:
        """The share that so many steps are from where the search begins."""
        return float(f"{self.begin * STEP**level:.3g}")

    def set(self, value: float) -> None:
        """Let the cost model take this value."""
        rows = files.read(self.file).setdefault(self.table, [])
        row = next((row for row in rows if all(row.get(key) == wanted for key, wanted in self.row)), None)
        if row is None:
            row = dict(self.row) | ({"generation": gpus.find(row_gpu).generation} if (row_gpu := self.gpu) else {})
            rows.append(row)
        row |= {"share": value, "source": self.source}

    def now(self) -> float:
        """The value that the cost model takes."""
        rows = files.read(self.file)[self.table]
        return float(next(row["share"] for row in rows if all(row.get(key) == wanted for key, wanted in self.row)))

    @property
    def gpu(self) -> str:
        """The GPU that the share is of, where it is one GPU's."""
        return dict(self.row).get("gpu", "")


def _class(name: str, begin: float) -> Share:
    return Share("streams", "class", (("name", name),), begin, 1.0)


def _of_generation(table: str, generation: str) -> Share:
    return Share("curves", table, (("precision", "fp16"), ("generation", generation)), 1.0)


def _rate(key: str) -> Share:
    return Share("streams", "rate", (("gpu", key),), 0.85, 0.97)


MOST = {"direct": 1.0, "conversion": 1.0, "arithmetic": 1.0, "narrow groups": 8.0}
"""What a share can be at most, by how its name begins: of a bandwidth, of the FP32 rate, of tiles hardly filled."""


def _convolutions(name: str, begin: float) -> Share:
    most = next((most for begins, most in MOST.items() if name.startswith(begins)), 2.0)
    pull = PULL if name.endswith("channels last") or name.startswith("arithmetic") else HELD
    return Share("convolutions", "share", (("name", name),), begin, most, pull=pull)


def _generated(name: str, begin: float) -> Share:
    return Share("generated", "share", (("name", name),), begin, 1.1, pull=PULL)


SHARES = {
    "rate RTX3090": _rate("RTX3090"),
    "rate RTX4090": _rate("RTX4090"),
    "product ampere-86": _of_generation("product", "ampere-86"),
    "convolution ampere-86": _of_generation("convolution", "ampere-86"),
    "convolution ada": _of_generation("convolution", "ada"),
    "backward": _convolutions("backward", 1.0),
    "conversion": _convolutions("conversion", 0.8),
    "channels first": _convolutions("channels first", 0.8),
    "direct": _convolutions("direct", 0.8),
    "direct backward": _convolutions("direct backward", 0.2),
    "direct channels last": _convolutions("direct channels last", 0.8),
    "arithmetic of cuDNN's": _convolutions("arithmetic of cuDNN's", 0.3),
    "channels last": _convolutions("channels last", 1.0),
    "pointwise channels last": _convolutions("pointwise channels last", 1.0),
    "grouped channels last": _convolutions("grouped channels last", 0.7),
    "narrow groups channels last": _convolutions("narrow groups channels last", 4.0),
    "generated pointwise": _generated("pointwise", 1.0),
    "generated layout": _generated("layout", 0.9),
    "generated persistent reduction": _generated("persistent reduction", 1.0),
    "generated reduction": _generated("reduction", 0.8),
    "generated sums": _generated("sums", 1.0),
    "reduction": _class("reduction", 0.8),
    "pool": _class("pool", 0.8),
    "pool backward": _class("pool backward", 0.3),
    "layer norm": _class("layer norm", 0.8),
    "layer norm backward": _class("layer norm backward", 0.3),
    "norm backward": _class("norm backward", 0.8),
    "softmax": _class("softmax", 0.8),
    "scattered": _class("scattered", 0.8),
}


def shares_of(recording: Recording, signature: Signature) -> tuple[str, ...]:
    """The shares that decide the price of a kernel."""
    gpu, operator, name = gpus.find(recording.gpu), classify(signature.name), bare(signature.name)
    rate, generation = f"rate {recording.gpu}", gpu.generation
    if operator.name == "convolution":
        model = CostModel(gpu, recording.cuda)
        problem = model.problem(signature, name, *model._precision(signature, operator, name))
        if looped_convolutions.is_looped(problem):
            return _product(generation)
        bias: tuple[str, ...] = (rate,) if streams.bias_ns(problem) else ()
        if name.endswith("_backward") and bias:
            bias = (rate, "reduction")
        direct = direct_convolutions.is_direct(problem)
        found = tuple(filter(None, direct_convolutions.share_names(problem))) if direct else _of_products(problem)
        return tuple(dict.fromkeys((*found, *bias)))
    if operator.name in generated.CLASSES:
        return (f"generated {generated.kind_of(signature)}", rate)
    if operator.name in ("matmul", "bmm") and _product(generation):
        return _product(generation)
    if operator.name not in (*streams.CLASSES, *scans.CLASSES):
        return ()
    kind = operator.name
    if "layer_norm" in name:
        kind = "layer norm"
    own = f"{kind} backward" if "backward" in name and f"{kind} backward" in SHARES else kind
    scattered = ("scattered",) if dict(signature.detail).get("scattered") else ()
    return (own, rate, *scattered) if own in SHARES else (rate, *scattered)


def _product(generation: str) -> tuple[str, ...]:
    """The share of a generation's products, where it is fitted here."""
    name = f"product {generation}"
    return (name,) if name in SHARES else ()


def _of_products(problem: Problem) -> tuple[str, ...]:
    """The shares of a convolution that is one of products."""
    found = (f"convolution {problem.gpu.generation}", *_product(problem.gpu.generation))  # which bounds it
    converted = ("conversion", f"rate {problem.gpu.key}")
    last = ("channels_last", 1) in problem.signature.detail
    if problem.name.endswith("_backward"):
        return (*found, "backward") if last else (*found, "backward", *converted)
    if problem.cuda_version < convolutions.NO_CONVERSION:
        return found if last else (*found, *converted)
    sizes = convolutions.sizes(problem)
    if sizes is None:
        return found
    own = convolutions.last_name(sizes[0])
    if last and convolutions.padded_elements(sizes[0]):
        return (*found, own, *converted)
    return (*found, own) if last else (*found, "channels first", own, *converted)


def least_of(model: CostModel, signature: Signature) -> float:
    """Nanoseconds that a kernel takes at least by those that were measured on another GPU."""
    operator, name = classify(signature.name), bare(signature.name)
    if operator.name not in neighbours.LENT:
        return 0.0
    return neighbours.lent_ns(model.problem(signature, name, *model.precision(signature)), operator.name)


class RecordedSteps:
    """The recorded steps, with the time of their kernels by the shares that decide it.

    What measured kernels say (`least_of`) is a measured time whatever the shares, so it is taken once, with shares and
    corrections that belong together.
    """

    def __init__(self, recordings: list[Recording]) -> None:
        self.recordings = recordings
        self.ms = np.array([one.ms for one in recordings])
        counts: dict[str, int] = defaultdict(int)
        for one in recordings:
            counts[one.group] += 1
        self.weights = np.array([counts[one.group] ** -0.5 for one in recordings])
        self.models = [CostModel(gpus.find(one.gpu), one.cuda) for one in recordings]
        self.groups: dict[tuple[str, ...], list[tuple[int, Signature, int, float]]] = defaultdict(list)
        self.host_ms = np.zeros(len(recordings))
        for index, one in enumerate(recordings):
            launched = np.bincount([at for at in one.order if at >= 0], minlength=len(one.signatures))
            model = self.models[index]
            for signature, times in zip(one.signatures, launched, strict=True):
                if not times:
                    continue
                least_ns = least_of(model, signature)
                self.groups[shares_of(one, signature)].append((index, signature, int(times), least_ns))
                self.host_ms[index] += times * model.dispatch_ns(signature.name) / 1e6
        self.times = cache(self._times)

    def _times(self, group: tuple[str, ...], levels: Levels) -> Array:
        """Milliseconds that each step spends in the kernels of a group, with its shares at these levels."""
        for name, level in zip(group, levels, strict=True):
            SHARES[name].set(SHARES[name].value(level))
        forget_shares()
        total = np.zeros(len(self.recordings))
        for index, signature, times, least_ns in self.groups[group]:
            total[index] += times * max(self.models[index].priced(signature).duration_ns, least_ns) / 1e6
        return total

    def predict(self, levels: dict[str, int]) -> Array:
        """Milliseconds of each step: of its kernels, or of the host where that takes longer."""
        parts = [self.times(group, tuple(levels[name] for name in group)) for group in self.groups]
        return np.maximum(np.sum(parts, axis=0), self.host_ms)

    def loss(self, levels: dict[str, int], chosen: Mask) -> float:
        """The mean of the chosen rows' logarithmic errors, cut, by their weights."""
        errors = np.minimum(np.abs(np.log(self.predict(levels) / self.ms)), CLIP)
        weights = self.weights * chosen
        pulled = sum(SHARES[name].pull * (level * np.log(STEP)) ** 2 for name, level in levels.items())
        return float(np.sum(errors * weights) / np.sum(weights) + pulled)

    def fit(self, chosen: Mask, begin: dict[str, int] | None = None) -> dict[str, int]:
        """The levels at which the chosen rows are met best, by steps that grow where they help and shrink where not."""

        def move(of: dict[str, int], name: str, change: int) -> dict[str, int] | None:
            level = of[name] + change
            return of | {name: level} if SHARES[name].value(level) <= SHARES[name].most else None

        levels = begin or dict.fromkeys(SHARES, 0)
        return search(levels, SHARES, lambda tried: self.loss(tried, chosen), move, 8)


def family(model: str) -> str:
    """The family of a model, by the beginning of its name."""
    return model.split("_")[0].rstrip("0123456789")


def cross_validate(steps: RecordedSteps, begin: dict[str, int]) -> tuple[Array, Array]:
    """Predicted milliseconds where the row's family was left out, and where its GPU was (of compiled ones, nothing)."""

    def predicted(_: int, others: Mask, mine: Mask) -> Array:
        return steps.predict(steps.fit(others, begin))[mine]

    of_family = left_out([fold_of(family(one.model)) for one in steps.recordings], predicted)
    keys = np.array([one.gpu for one in steps.recordings])
    of_gpu = np.empty(len(steps.ms))
    for key, other in (("RTX3090", "RTX4090"), ("RTX4090", "RTX3090")):
        levels = steps.fit(keys == other)
        near = gpus.find(key).generation, gpus.find(other).generation
        levels[f"rate {key}"] = levels[f"rate {other}"]
        levels[f"convolution {near[0]}"] = levels[f"convolution {near[1]}"]
        of_gpu[keys == key] = steps.predict(levels)[keys == key]
    return of_family, of_gpu


def begin() -> None:
    """Shares before anything is fitted."""
    for share in SHARES.values():
        share.set(share.begin)
    save()


def save() -> None:
    """Write the shares as they are into their files."""
    forget_shares()
    for file, head in {
        "streams": calibrate_streams.HEAD,
        "convolutions": CONVOLUTIONS_HEAD,
        "generated": GENERATED_HEAD,
    }.items():
        write(file, head, tables_of(files.read(file)))
    known = files.read("curves")
    shares = {kind: known.get(kind, []) for kind in calibrate_cost.SHARES}
    calibrate_cost.Fit(known.get("curve", []), shares).write()


class Found(NamedTuple):
    """The recorded steps, the levels that were fitted, and the milliseconds predicted with what was left out."""

    steps: RecordedSteps
    levels: dict[str, int]
    left_out: Array
    of_gpu: Array

    @property
    def is_compiled(self) -> Mask:
        """Which of the steps are compiled ones."""
        return np.array([one.group == COMPILED for one in self.steps.recordings])


FIGURES = {"train-3090": ("RTX3090 train", False), "infer-3090": ("RTX3090 infer", False),
           "infer-4090": ("RTX4090 infer", False), "gpu-3090": ("RTX3090 ", True),
           "gpu-4090": ("RTX4090 ", True), "compiled": (COMPILED, False)}  # fmt: skip
"""The rows of docs/figures/models.json: how their groups' names begin, and whether the GPU is left out or families."""


def figures_of(found: Found) -> dict[str, dict[str, Any]]:
    """The figures of the cross-validation; between which values they lie where a row has several groups."""
    groups = np.array([one.group for one in found.steps.recordings])
    made: dict[str, dict[str, Any]] = {}
    for row, (begins, is_of_gpu) in FIGURES.items():
        ratio = found.steps.ms / (found.of_gpu if is_of_gpu else found.left_out)
        names = [name for name in dict.fromkeys(groups.tolist()) if name.startswith(begins)]
        parts = [Residuals("", name, ratio[groups == name]).figures() for name in names]
        ends = {of: sorted(part[of] for part in parts) for of in ("median", "p90", "bias")}
        values = {of: ends[of][0] if len(parts) == 1 else [ends[of][0], ends[of][-1]] for of in ends}
        made[row] = {"number": sum(part["number"] for part in parts)} | values
    return made


def recordings() -> list[Recording]:
    """The steps that are fitted: all recorded eager ones, and the compiled ones that are not held out."""
    return [*corpus.read(EAGER_STEPS), *compiled_recordings()]


def compiled_recordings() -> list[Recording]:
    """The recorded compiled steps that are fitted."""
    return [one for one in corpus.read(COMPILED_STEPS) if one.group == COMPILED]


def calibrate() -> Found:
    """Fit, cross-validate and write the shares."""
    steps = RecordedSteps(recordings())
    for share in SHARES.values():
        share.set(share.begin)
    forget_shares()
    levels = steps.fit(np.ones(len(steps.ms), bool))
    for name, share in SHARES.items():
        print(f"  {name:32} {share.value(levels[name]):.3f}")
    of_family, of_gpu = cross_validate(steps, levels)
    groups = [one.group for one in steps.recordings]
    for title, predicted in (("families of models left out", of_family), ("the GPU left out", of_gpu)):
        print(title)
        report_groups(groups, steps.ms / predicted)
    for name, share in SHARES.items():
        share.set(share.value(levels[name]))
    save()
    found = Found(steps, levels, of_family, of_gpu)
    figures.record("models", figures_of(found))
    return found


def check() -> None:
    """The errors of the shares as they are."""
    some = recordings()
    report_groups([one.group for one in some], np.array([one.ratio() for one in some]))
