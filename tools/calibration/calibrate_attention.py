"""Fit the constants of fused attention on published kernel timings, cross-validate them, write both as data.

A100 and L40S have thousands of timings each (NVIDIA aiconfigurator, FlashAttention-2): all constants are fitted there,
and those of the other generations, of which people published a dozen rows, keep what they cannot tell. Shapes are left
out by whole sets of heads and sizes of a head, in five folds; a generation by another's constants.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tools.corpus import tables
from tools.fitting import (
    Array,
    Mask,
    Residuals,
    Tables,
    band_rows,
    chosen,
    fold_of,
    left_out,
    loss_of,
    pooled,
    search,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost import cache
from windtunnel.cost.families import attention, streams
from windtunnel.cost.families.attention import Attention, AttentionConstants
from windtunnel.cost.power import sustained_share

SOURCE = "fitted: {n} timings of FlashAttention-2 ({where})"
AICONFIGURATOR = "NVIDIA aiconfigurator, Apache-2.0"
BENCHMARKS = "flash-attention's and PyTorch's benchmarks as people published them"
CLIP = 0.6
SAMPLE = 500
SMALL = {"RTXA5000": ("RTXA6000", 64, 1695)}
"""A card that the catalogue lacks: its relative, its multiprocessors and their clock in MHz (NVIDIA's datasheet)."""


class Plan(NamedTuple):
    """What is fitted for a generation, on which GPU's rows, and whose constants the others are."""

    generation: str
    gpu: str
    free: tuple[str, ...]
    base: str = ""


ALL = ("efficiency", "score_cycles", "prologue_us", "tail", "floor_us")
PLANS = (
    Plan("ada", "L40S", (*ALL, "causal")),
    Plan("ampere", "A100-SXM4-80GB", ALL),
    Plan("ampere-86", "RTXA5000", ("efficiency", "backward"), "ada"),
    Plan("hopper", "H100-SXM5-80GB", ("efficiency", "score_cycles", "backward"), "ampere"),
    Plan("blackwell", "B200-180GB", ("efficiency", "score_cycles", "backward"), "ampere"),
)
BACKWARD_OF = "ampere-86"
"""Whose backward pass stands for the generations of which nobody published one: the nearest with the same kernels."""
CAUSAL_OF = "ada"
"""Whose causal mask stands for all, so that it is fitted first: an A100's published timings are all causal, most of the
others' none."""
KERNELS = ("efficient", "efficient backward", "efficient fp32", "efficient fp32 backward")


class AttentionTiming(NamedTuple):
    """One row: the kernel ("" for flash), its sizes, its microseconds, and whether the cache is filled in that time.

    vLLM's layer, which aiconfigurator times, puts keys and values into its cache before it attends.
    """

    kernel: str
    of: Attention
    us: float
    cached: bool = False


def read() -> dict[str, list[AttentionTiming]]:
    """The table by GPU."""
    found: dict[str, list[AttentionTiming]] = defaultdict(list)
    for row in tables.read("attention_bf16.csv.gz"):
        words = row["pass"].split()
        backward = words[0] == "backward"
        kernel = " ".join(words[1:] + (["backward"] if backward and len(words) > 1 else []))
        length, dim = int(row["length"]), int(row["head_dim"])
        of = Attention(int(row["batch"]), int(row["heads"]), int(row["kv_heads"]), length, length, dim, dim,
                       row["causal"] == "1", backward, not backward)  # fmt: skip
        cached = row["source"] == "aiconfigurator" and of.causal
        found[row["gpu"]].append(AttentionTiming(kernel, of, float(row["us"]), cached))
    return found


def gpu_of(key: str) -> gpus.Gpu:
    """The catalogue's GPU, or one that is like another but for its number of multiprocessors and their clock."""
    if key not in SMALL:
        return gpus.find(key)
    relative, sm_count, clock_mhz = SMALL[key]
    of = gpus.find(relative)
    part = sm_count * clock_mhz / (of.sm_count * of.clock_mhz)
    peaks = {kind: part * peak for kind, peak in of.peak_flops.items()}
    return replace(of, key=key, sm_count=sm_count, clock_mhz=clock_mhz, peak_flops=peaks)


def predict(timings: list[AttentionTiming], gpu: gpus.Gpu, constants: AttentionConstants, share: float = 1.0) -> Array:
    """The model's time of each row."""
    reached = constants._replace(efficiency=constants.efficiency * share, score_cycles=constants.score_cycles / share)
    found = []
    for timing in timings:
        fp32 = "fp32" in timing.kernel
        peak = gpu.peak_flops["fp32" if fp32 else "bf16"]
        us = attention.time_us(timing.of, gpu, peak, 4 if fp32 else 2, reached)
        us += constants.floor_us * (3 if timing.of.backward else 1)
        found.append(us + filling_us(timing.of, gpu) if timing.cached else us)
    return np.array(found)


def filling_us(of: Attention, gpu: gpus.Gpu) -> float:
    """Reading keys and values and writing them elsewhere, as a kernel of its own."""
    size = 2 * 2 * of.texts * of.key_heads * of.keys * (of.dim + of.value_dim)
    return float(1e-3 * cache.moved_ns(gpu, size, streams.bandwidth(gpu)))


def measured(timings: list[AttentionTiming]) -> Array:
    return np.array([timing.us for timing in timings])


def fit(
    timings: list[AttentionTiming], gpu: gpus.Gpu, begin: AttentionConstants, free: tuple[str, ...], seed: int = 0
) -> AttentionConstants:
    """The free constants that meet a sample of the rows best."""
    order = np.random.default_rng(seed).permutation(len(timings))[:SAMPLE]
    some = [timings[index] for index in order]

    def loss(constants: AttentionConstants) -> float:
        return loss_of(predict(some, gpu, constants), measured(some), CLIP)

    def move(of: AttentionConstants, name: str, step: float) -> AttentionConstants:
        value = float(getattr(of, name) * np.exp(step))
        return of._replace(**{name: min(1.0, value) if name == "tail" else value})

    found = search(begin, free, loss, move, least=0.01, grow=1.2, shrink=lambda step: 0.5 * step)
    return found._replace(**{name: float(f"{getattr(found, name):.4g}") for name in free})


def flash(timings: list[AttentionTiming]) -> list[AttentionTiming]:
    """The rows of flash attention itself."""
    return [timing for timing in timings if not timing.kernel]


def cross_validate(
    timings: list[AttentionTiming], gpu: gpus.Gpu, begin: AttentionConstants, free: tuple[str, ...]
) -> Residuals:
    """Every fold predicted with constants that have not seen its sets of heads and sizes of them."""
    folds = [fold_of(f"{one.of.heads} {one.of.key_heads} {one.of.dim} {one.of.causal}") for one in timings]

    def predicted(fold: int, others: Mask, mine: Mask) -> Array:
        constants = fit(chosen(timings, others), gpu, begin, free, fold)
        return predict(chosen(timings, mine), gpu, constants)

    return Residuals("own GPU", gpu.key, measured(timings) / left_out(folds, predicted), measured(timings))


def scaled(constants: AttentionConstants, of: gpus.Gpu, to: gpus.Gpu) -> AttentionConstants:
    """A GPU's constants for another, whose power limit may be a different one."""
    clock = sustained_share(to, "tf32") / sustained_share(of, "tf32")
    return constants._replace(efficiency=constants.efficiency * clock, score_cycles=constants.score_cycles / clock)


def calibrate() -> None:
    """Fit, cross-validate and write."""
    timings = read()
    fitted: dict[str, AttentionConstants] = {}
    rows: Tables = []
    own: list[Residuals] = []
    borrowed: list[Residuals] = []
    for plan in PLANS:
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        seen = fitted.get(CAUSAL_OF, AttentionConstants())
        begin = fitted.get(plan.base, AttentionConstants(causal=seen.causal))
        fitted[plan.generation] = fit(some, gpu, begin, plan.free)
        if plan.base:
            near = gpu_of(next(other.gpu for other in PLANS if other.generation == plan.base))
            constants = scaled(fitted[plan.base], near, gpu)
            us = measured(some)
            borrowed.append(Residuals("borrowed", plan.gpu, us / predict(some, gpu, constants), us))
        else:
            own.append(cross_validate(some, gpu, begin, plan.free))
            own[-1].report()
    for plan, other in ((PLANS[0], PLANS[1]), (PLANS[1], PLANS[0])):
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        constants = scaled(fitted[other.generation], gpu_of(other.gpu), gpu)
        us = measured(some)
        borrowed.append(Residuals("borrowed", plan.gpu, us / predict(some, gpu, constants), us))
    for plan in PLANS:
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        constants = fitted[plan.generation]
        if "backward" not in plan.free:
            constants = constants._replace(backward=fitted[BACKWARD_OF].backward)
            fitted[plan.generation] = constants
        where = BENCHMARKS if plan.base else AICONFIGURATOR
        head = {"generation": plan.generation, "gpu": plan.gpu, "sustained_share": sustained_share(gpu, "tf32")}
        source = {"n": len(some), "source": SOURCE.format(n=len(some), where=where)}
        rows.append(("row", {**head, **constants._asdict(), **source}))
        if plan.base:
            Residuals("fitted", plan.gpu, measured(some) / predict(some, gpu, constants)).report(np.inf)
    others = [one for one in timings["A100-SXM4-40GB"] if not one.kernel]
    gpu = gpus.find("A100-SXM4-40GB")
    us = measured(others)
    siblings = [Residuals("own generation", gpu.key, us / predict(others, gpu, fitted["ampere"]), us)]
    for kernel in KERNELS:
        some = [one for one in timings[gpu.key] if one.kernel == kernel]
        share = share_of(some, gpu, fitted["ampere"])
        rows.append(("share", {"name": kernel, "share": share, "n": len(some), "source": EFFICIENT}))
        us = measured(some)
        one = Residuals(kernel, gpu.key, us / predict(some, gpu, fitted["ampere"], share), us)
        one.report(np.inf)
        siblings.append(one)
    residuals = {"own GPU": own, "own generation": siblings, "borrowed": borrowed}
    for one in (pooled(siblings)._replace(gpu=gpu.key), *borrowed):
        one.report()
    write("attention", "Fused attention: the constants of cost/families/attention.py.", rows)
    update_bands(("attention",), band_rows("attention", residuals, SOURCES))


EFFICIENT = (
    "fitted: xFormers' and CUTLASS's tables of their kernels on an A100 "
    "(facebookresearch/xformers#480, #587, NVIDIA/cutlass#662)"
)
SOURCES = {
    "own GPU": "cross-validated with sets of heads left out",
    "own generation": "another GPU of the generation than the constants' own, and the memory-efficient kernels",
    "borrowed": "another generation's constants",
}


def share_of(timings: list[AttentionTiming], gpu: gpus.Gpu, constants: AttentionConstants) -> float:
    """The share of flash attention's rates at which the median row takes what was measured."""
    low, high = 0.05, 4.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        slow = np.median(predict(timings, gpu, constants, middle) / measured(timings)) > 1.0
        low, high = (middle, high) if slow else (low, middle)
    return float(f"{(low * high) ** 0.5:.3g}")


def check() -> None:
    """The errors of the constants as they are."""
    for key, some in read().items():
        gpu = gpu_of(key)
        row = attention.row_for(gpu.generation)
        assert row is not None
        constants = scaled(row.constants, gpu_of(row.gpu), gpu)
        kernels = sorted({(one.kernel, one.of.backward) for one in some})
        for kernel, backward in kernels:
            mine = [one for one in some if (one.kernel, one.of.backward) == (kernel, backward)]
            ratio = measured(mine) / predict(mine, gpu, constants, attention.share(kernel))
            Residuals(kernel or ("backward" if backward else "flash"), key, ratio).report()
