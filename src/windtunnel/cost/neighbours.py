"""What a real GPU took for kernels, beside what the families say: corrections for kernels that lie near measured ones.

`data/neighbours_GENERATION.json` has, for a generation that was measured (`make hardware`), kernels with the logarithm
of measured over modelled time. A kernel belongs to a kind: operator, type, layout, whatever else sets
another CUDA kernel apart. Within its kind it lies somewhere by the logarithms of its sizes. Its correction is the mean
of the kind's kernels, each weighted by the inverse fourth power of its distance, so that a size between two measured
ones gets something between and one far away the nearest. Kinds that were not measured keep the family's time.

The families say how time changes with sizes and from GPU to GPU; corrections say what they leave out: how rows are
divided among threads, which kernel a library chooses, what L2 holds. The band widens with the distance to the nearest
kernel (`widened`), but not where only elements grow that L2 does not hold (`FULL`); beyond a distance of `REACH` a
correction counts less and less, and the band has what was left of it. `make calibrate` writes the file, and prints the
error with each kernel left out of its own correction.
"""

from __future__ import annotations

import json
import re
from functools import cache
from math import dist, exp, inf, log, log2, prod
from typing import NamedTuple

from windtunnel import gpus
from windtunnel.cost import flops, sustained
from windtunnel.cost.bands import band
from windtunnel.cost.families import attention, by_class, iterated, streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import DATA
from windtunnel.cost.power import unsure
from windtunnel.cost.recurrent import recurrence
from windtunnel.operators.card import card

SOFTEN = 0.05
"""Added to squared distances (in factors of two), so that no single kernel decides alone."""
REACH = 2.0
"""How far a correction holds, in factors of two of a size; further away it fades with the square of the distance."""
WIDER, FURTHEST = 1.4, 4.0
"""How errors grow with the distance to the nearest measured kernel, in factors of two of a size, and how far. Of 2,002
kernels left out of their own correction, four fifths are within 29 % up to one, 45 % up to two, 61 % up to three and
89 % beyond."""
FULL = 24.0
"""From two to this power of elements on, L2 does not hold them, and a kernel that goes along rows takes as long for
each: kernels that differ in no other size are near. Of 73 that are further than 1.5 from all others, but near so, four
fifths are within 30 %, of 77 that are far either way within 71 %."""
_BY_NAME = ("norm", "softmax", "embedding", "index", "scan", "sort", "random", "foreach", "optimizer")
"""Classes whose operators are kernels of their own each."""
_BY_FORM = ("elementwise", "activation", "copy", "fill", "reduction")
"""Classes whose operators are the same kernel with another function in it, at most in another form."""
PLAIN = " plain "
"""In the names of kinds that the share of the bandwidth covers, so that a larger one never takes less: those have no
corrections, but bands of their own."""
UNSURE = ("norm", "softmax", "reduction", "pool")
"""Classes whose kinds differ by more than their family's band: one without corrections has that of all kinds without.
"""
_ON_ANOTHER = ("scan", "sort", "index", "random")
"""Classes whose families are fitted on another GPU of the generation (an H20): corrected on the measured one alone."""

LENDER, NOT_MEMORY = "H100-SXM5-80GB", 1.3
"""The GPU whose kernels tell of generations without any, and from what correction on memory does not bound them."""
LENT = ("pool", "reduction", "copy", "index", "elementwise", "activation")
"""Classes that lend; norms and softmax were timed on other cards, and batch norms are part of the steps of models that
shares were fitted on."""
LENT_FROM_NS = 20_000.0
"""Shorter ones are what their start and their waits take, which is not a matter of multiprocessors."""
LENT_BAND = 0.4
"""Assumed: what is lent was measured on no card that borrows it."""


class Place(NamedTuple):
    """The kind of a kernel, and where it lies in it: logarithms to base 2 of its sizes.

    More than `full` of the first size is no further away.
    """

    kind: str
    sizes: tuple[float, ...]
    full: float = inf


class Kernel(NamedTuple):
    """A measured kernel: where it lies, and the natural logarithm of measured over modelled time."""

    sizes: tuple[float, ...]
    correction: float


class MeasuredGeneration(NamedTuple):
    """What was measured of a generation: on which GPUs, and the kernels by kind."""

    gpus: frozenset[str]
    kinds: dict[str, tuple[Kernel, ...]]


@cache
def measured(generation: str) -> MeasuredGeneration | None:
    """The kernels of a generation; None where none was measured."""
    path = DATA / f"neighbours_{generation}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    kinds = {kind: tuple(Kernel(tuple(sizes), one) for *sizes, one in rows) for kind, rows in found["kinds"].items()}
    return MeasuredGeneration(frozenset(found["gpus"]), kinds)


def corrected(priced: Price, problem: Problem, class_name: str) -> Price:
    """A price with the correction of the kernels nearby; as it was where none of its kind was measured."""
    known = measured(problem.gpu.generation)
    if known is None:
        return lent(priced, problem, class_name)
    found = place(problem, class_name)
    if found is None:
        return priced
    own = problem.gpu.key in known.gpus
    distance = "own GPU" if own else "own generation"
    if PLAIN in found.kind:
        return priced._replace(band=band("neighbours plain", distance, us=priced.duration_ns / 1000.0), own=own)
    near = known.kinds.get(found.kind)
    if near is None and class_name in UNSURE:
        width = band(f"unmeasured {class_name}", distance, us=priced.duration_ns / 1000.0)
        return priced._replace(band=max(priced.band, width), own=own)
    if near is None:
        return priced
    if not own and class_name in _ON_ANOTHER:
        return priced
    away = nearest(found, near)
    known_part = min(1.0, (REACH / max(REACH, away)) ** 2)
    whole = correction(found.sizes, near)
    width = widened(away) * band(f"neighbours {class_name}", distance)
    if class_name in sustained.CLASSES:
        width = max(width, min(unsure(problem.gpu, gpus.find(one)) for one in known.gpus))
    left = exp(abs(whole) * (1.0 - known_part)) - 1.0
    return Price(priced.duration_ns * exp(whole * known_part), priced.floor_ns, min(1.0, width + left), own=own)


def lent(priced: Price, problem: Problem, class_name: str) -> Price:
    """A price on a generation of which no kernel was measured, at least what another GPU's kernels say."""
    least_ns = lent_ns(problem, class_name)
    if not least_ns:
        return priced
    return priced._replace(duration_ns=max(priced.duration_ns, least_ns), band=max(priced.band, LENT_BAND))


def lent_ns(problem: Problem, class_name: str) -> float:
    """What a kernel takes at least on a generation of which none was measured, 0 where nothing says so. Where kernels
    nearby took longer on the GPU that lends its own than memory says, multiprocessors bound them, and take as many
    cycles here."""
    if measured(problem.gpu.generation) is not None:
        return 0.0
    lender = gpus.find(LENDER)
    known, there = measured(lender.generation), problem._replace(gpu=lender)
    found = place(there, class_name) if class_name in LENT else None
    near = known.kinds.get(found.kind) if known is not None and found is not None else None
    if found is None or near is None or nearest(found, near) > REACH:
        return 0.0
    theirs = next((price for family in by_class()[class_name] if (price := family(there)) is not None), None)
    whole = correction(found.sizes, near)
    if theirs is None or whole < log(NOT_MEMORY):
        return 0.0
    taken_ns = theirs.duration_ns * exp(whole)
    return taken_ns * problem.gpu.spread_ns(1.0) / lender.spread_ns(1.0) if taken_ns >= LENT_FROM_NS else 0.0


def widened(away: float) -> float:
    """How many times as far off a correction is whose nearest kernel is so far away."""
    return float(WIDER ** min(away, FURTHEST))


def nearest(of: Place, near: tuple[Kernel, ...]) -> float:
    """How far the nearest measured kernel is, in factors of two."""
    if of.full == inf:
        return min(dist(of.sizes, one.sizes) for one in near)
    first, *others = of.sizes
    beside = (min(of.full, first), *others)
    return min(dist(beside, (min(of.full, one.sizes[0]), *one.sizes[1:])) for one in near)


def correction(sizes: tuple[float, ...], near: tuple[Kernel, ...]) -> float:
    """The weighted mean of the kernels' corrections."""
    weights = [(SOFTEN + sum((a - b) ** 2 for a, b in zip(sizes, one.sizes, strict=True))) ** -2 for one in near]
    return sum(weight * one.correction for weight, one in zip(weights, near, strict=True)) / sum(weights)


def place(problem: Problem, class_name: str) -> Place | None:
    """Where a kernel lies; None for classes without kinds."""
    if not problem.inputs or not problem.inputs[0]:
        return None
    measured_as = card(f"aten::{problem.name}").measured_as
    words = measured_as or problem.name
    if problem.name in streams.SELECTED_CYCLES:
        if problem.cuda_version < streams.SELECTED_SINCE:
            return None
        rows = dict(problem.signature.detail).get("strided")  # a gather by an expanded index copies rows as well
        words = "index_select" if rows else words
    if class_name == "attention":
        return _attention(problem, words)
    if class_name == "convolution":
        return _convolution(problem)
    if class_name in ("matmul", "bmm"):
        return _product(problem, class_name)
    if class_name == "rnn":
        return _recurrent(problem, words)
    if class_name == "pool":
        return _pool(problem, words)
    if class_name not in _BY_NAME and class_name not in _BY_FORM:
        return None
    form = _reduced if class_name == "reduction" else iterated.form
    kind = words if class_name in _BY_NAME or measured_as else f"{class_name} {form(problem)}"
    if kind == "copy scattered":  # only element-wise ones were measured, whose order bounds them just the same
        kind = "elementwise scattered"
    detail = dict(problem.signature.detail)
    if class_name in ("norm", "reduction") and detail.get("channels_last"):
        kind += " channels last"
    if "batch_norm" in words and not detail.get("training", 1):
        kind += " in eval"
    return Place(f"{kind} {8 * problem.item_bytes}", _rows(problem, class_name), FULL)


def _reduced(problem: Problem) -> str:
    """What a reduction leaves: one number, the first dimensions, or others; extremes apart from sums."""
    outputs = problem.signature.shapes[problem.signature.inputs :]
    x, left = problem.inputs[0], outputs[0] if outputs else ()
    kept = tuple(size for size in left if size > 1)
    to = "all" if not kept else "rows" if kept == x[: len(kept)] else "columns"
    return f"{'extreme' if 'max' in problem.name or 'min' in problem.name else 'sum'} {to}"


def _rows(problem: Problem, class_name: str) -> tuple[float, ...]:
    """Elements, and of kernels that go along rows the rows' length."""
    x = problem.inputs[0]
    outputs = problem.signature.shapes[problem.signature.inputs :]
    if class_name == "norm" and "backward" in problem.name and len(problem.inputs) > 1:
        x = problem.inputs[1]
    total = sum(prod(shape) for shape in problem.inputs) if class_name in ("foreach", "optimizer") else prod(x)
    if class_name in ("norm", "softmax", "scan", "sort"):
        row = x[1] if "batch_norm" in problem.name and len(x) > 1 else x[-1]
        if "layer_norm" in problem.name or "rms_norm" in problem.name:
            row = streams.row_of(problem)
        return log2(max(1, total)), log2(max(1, row))
    if class_name in ("index", "embedding", "copy"):
        total = prod(outputs[0]) if outputs else total
    if class_name == "reduction":
        return log2(max(1, total)), log2(max(1, prod(outputs[0]) if outputs else 1))
    return (log2(max(1, total)),)


def _attention(problem: Problem, words: str) -> Place | None:
    found = attention.sizes(problem)
    if found is None:
        return None
    mask = (" causal" if found.causal else "") + (" masked" if found.masked else "")
    queries = max(found.queries, attention.TILE_ROWS // 2)  # fewer make the same blocks
    sizes = (found.texts * found.heads, queries, found.keys, found.dim)
    return Place(f"{words}{mask} {8 * problem.item_bytes}", tuple(log2(max(1, size)) for size in sizes))


def _pool(problem: Problem, words: str) -> Place | None:
    """Elements before and after, places of an image after, which are the threads of some kernels, and the window.

    Windows of different strides read the same element so many times; an adaptive one is told by its sizes alone.
    """
    outputs = problem.signature.shapes[problem.signature.inputs :]
    backward = "backward" in problem.name
    small, large = (problem.inputs[0], outputs[0] if outputs else ()) if backward else (
        outputs[0] if outputs else (), problem.inputs[0])  # fmt: skip
    if len(small) < 3 or len(large) != len(small):
        return None
    detail = dict(problem.signature.detail)
    last = " channels last" if detail.get("channels_last") else ""
    window = prod(int(one) for one in re.findall(r"\d+", str(detail.get("kernel_size", "1"))))
    sizes = (prod(large), prod(small), prod(small[2:]), window)
    return Place(
        f"{words}{last} {len(small) - 2}-D {8 * problem.item_bytes}", tuple(log2(max(1, one)) for one in sizes)
    )


def _recurrent(problem: Problem, words: str) -> Place | None:
    """Kind of cell and arithmetic; sequences, steps, units, layers: cuDNN chooses among three algorithms by them."""
    found = recurrence(problem.signature)
    if found is None:
        return None
    cells = dict(problem.signature.detail).get("mode", "")
    sizes = (found.cells / found.steps, found.steps, found.units, found.layers)
    return Place(f"{words} {cells} {problem.precision}", tuple(log2(max(1, one)) for one in sizes))


def _convolution(problem: Problem) -> Place | None:
    """Direction, arithmetic, layout, and which of the library's kernels: by groups, few channels, 1x1.

    What was measured is cuDNN's choice by its heuristics. With `cudnn.benchmark` it finds faster kernels for ordinary
    convolutions, as in timm's results, on which the family is fitted, and as on the H100: ResNet-50's first layer took
    a quarter of the time. Patches of images gain nothing.
    """
    backward = problem.name.endswith("_backward")
    tensors = problem.inputs[1:3] if backward else problem.inputs[:2]
    if len(tensors) < 2 or len(tensors[0]) < 3 or len(tensors[1]) != len(tensors[0]):
        return None
    images, weight = tensors
    detail = dict(problem.signature.detail)
    transposed = flops.is_set(problem.signature, "transposed")
    channels, filters = weight[1], prod(weight[2:])
    if transposed:  # it runs as the gradient of one from its results to its images
        groups = int(str(detail.get("groups", 1)))
        channels = weight[0] // groups
    else:
        groups = max(1, images[1] // max(1, channels))
    sort = "depthwise" if groups > 1 and channels == 1 else "grouped" if groups > 1 else "few channels"
    if groups == 1 and channels > 4:
        sort = "1x1" if filters == 1 else "full"
    outputs = problem.signature.shapes[problem.signature.inputs :]
    deep = problem.inputs[0] if backward else outputs[0] if outputs else images
    steps = prod(images[2:]) / max(1, prod(deep[2:]))
    if detail.get("benchmark") and groups == 1 and (steps != filters or channels > 4):
        return None
    arithmetic = "16" if problem.precision in ("fp16", "bf16") else problem.precision
    kind = f"convolution{' backward' if backward else ''} {sort} {arithmetic}"
    kind += " transposed" * transposed + (f" {len(images) - 2}-D" if len(images) != 4 else "")
    kind += " channels last" if detail.get("channels_last") else ""
    kind += " dilated" if any(int(one) > 1 for one in re.findall(r"\d+", str(detail.get("dilation", "")))) else ""
    sizes = (images[0] * prod(deep[2:]), images[1], deep[1] if transposed else weight[0], filters, steps)
    return Place(kind, tuple(log2(max(1e-3, size)) for size in sizes))


def _product(problem: Problem, class_name: str) -> Place | None:
    """Products in 16 bits whose rows are not aligned, by how badly, and by whether the second operand lies transposed;
    those in TF32, FP64 and 8 bits, by layout and alignment, at their sizes.

    All others were published by the thousand, and their family is fitted on those. A kind of 16 bits has one correction
    for all sizes, with which a larger product never takes less.
    """
    try:
        contiguous = flops.contiguous_sizes(problem.signature, problem.name, problem.inputs)
        sizes = flops.matmul_sizes(problem.name, problem.inputs)
    except IndexError:
        return None
    aligned = min(16, *(problem.item_bytes * (size & -size) for size in contiguous))
    transposed = flops.is_set(problem.signature, "transposed_b") != (problem.name == "linear")
    if problem.precision in ("fp16", "bf16"):
        if aligned == 16:
            return None
        return Place(f"{class_name}{' transposed' * transposed} aligned to {aligned}", ())
    if problem.precision == "fp32":
        return None
    first = flops.is_set(problem.signature, "transposed_a")
    kind = f"{class_name} {problem.precision}{' first' * first}{' transposed' * transposed} aligned to {aligned}"
    return Place(kind, tuple(log2(max(1, size)) for size in sizes))
