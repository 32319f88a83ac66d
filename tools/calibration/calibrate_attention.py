"""Fit the constants of fused attention on published kernel timings, cross-validate them, write both as data.

    python tools/calibration/calibrate_attention.py            # writes attention.toml and the bands of `attention`
    python tools/calibration/calibrate_attention.py --check    # fits nothing: the error of the constants as they are

A100 and L40S have thousands of timings each (NVIDIA aiconfigurator, FlashAttention-2): all constants are fitted there,
and those of the other generations, of which people published a dozen rows, keep what they cannot tell. Shapes are left
out by whole sets of heads and sizes of a head, in five folds; a generation by another's constants.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import tables  # noqa: E402
from calibrate_products import FOLDS, Array, Residuals, band_rows, report, update_bands, write  # noqa: E402

from windtunnel import gpus  # noqa: E402
from windtunnel.cost.families import attention, streams  # noqa: E402
from windtunnel.cost.families.attention import Attention, Constants  # noqa: E402

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


PLANS = (
    Plan("ampere", "A100-SXM4-80GB", ("efficiency", "score_cycles", "prologue_us", "tail", "floor_us")),
    Plan("ada", "L40S", ("efficiency", "score_cycles", "prologue_us", "tail", "floor_us")),
    Plan("ampere-86", "RTXA5000", ("efficiency", "backward"), "ada"),
    Plan("hopper", "H100-SXM5-80GB", ("efficiency",), "ampere"),
    Plan("blackwell", "B200-180GB", ("efficiency", "score_cycles", "backward"), "ampere"),
)
BACKWARD_OF = "ampere-86"
"""Whose backward pass stands for the generations of which nobody published one: the nearest with the same kernels."""
KERNELS = ("efficient", "efficient backward", "efficient fp32", "efficient fp32 backward")


class Timing(NamedTuple):
    """One row: the kernel ("" for flash), its sizes, its microseconds, and whether the cache is filled in that time.

    vLLM's layer, which aiconfigurator times, puts keys and values into its cache before it attends.
    """

    kernel: str
    of: Attention
    us: float
    cached: bool = False


def read() -> dict[str, list[Timing]]:
    """The table by GPU."""
    found: dict[str, list[Timing]] = defaultdict(list)
    for row in tables.read("attention_bf16.csv.gz"):
        words = row["pass"].split()
        backward = words[0] == "backward"
        kernel = " ".join(words[1:] + (["backward"] if backward and len(words) > 1 else []))
        length, dim = int(row["length"]), int(row["head_dim"])
        of = Attention(int(row["batch"]), int(row["heads"]), int(row["kv_heads"]), length, length, dim, dim,
                       row["causal"] == "1", backward, not backward)  # fmt: skip
        cached = row["source"] == "aiconfigurator" and of.causal
        found[row["gpu"]].append(Timing(kernel, of, float(row["us"]), cached))
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


def predict(timings: list[Timing], gpu: gpus.Gpu, constants: Constants, share: float = 1.0) -> Array:
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
    return float(1e-3 * streams.moved_ns(gpu, size, streams.bandwidth(gpu)))


def measured(timings: list[Timing]) -> Array:
    return np.array([timing.us for timing in timings])


def loss(timings: list[Timing], gpu: gpus.Gpu, constants: Constants) -> float:
    """The mean of the logarithmic errors, of which those of outliers count no more than `CLIP`."""
    errors = np.abs(np.log(predict(timings, gpu, constants) / measured(timings)))
    return float(np.mean(np.minimum(errors, CLIP)))


def fit(timings: list[Timing], gpu: gpus.Gpu, begin: Constants, free: tuple[str, ...], seed: int = 0) -> Constants:
    """Search along one constant after the other, with steps that grow where they help and shrink where not."""
    order = np.random.default_rng(seed).permutation(len(timings))[:SAMPLE]
    some = [timings[index] for index in order]
    found, best = begin, loss(some, gpu, begin)
    step = dict.fromkeys(free, 0.3)
    while max(step.values()) > 0.01:
        for name in free:
            if step[name] <= 0.01:
                continue
            for factor in (np.exp(step[name]), np.exp(-step[name])):
                value = float(getattr(found, name) * factor)
                if name == "tail":
                    value = min(1.0, value)
                tried = found._replace(**{name: value})
                error = loss(some, gpu, tried)
                if error < best - 1e-6:
                    best, found = error, tried
                    step[name] *= 1.2
                    break
            else:
                step[name] *= 0.5
    return found._replace(**{name: float(f"{getattr(found, name):.4g}") for name in free})


def flash(timings: list[Timing]) -> list[Timing]:
    """The rows of flash attention itself."""
    return [timing for timing in timings if not timing.kernel]


def folds(timings: list[Timing]) -> Array:
    """The fold of each row, the same for all of a set of heads and a size of them."""
    keys = (f"{one.of.heads} {one.of.key_heads} {one.of.dim} {one.of.causal}" for one in timings)
    return np.array([zlib.crc32(key.encode()) % FOLDS for key in keys])


def cross_validate(timings: list[Timing], gpu: gpus.Gpu, plan: Plan) -> Residuals:
    """Every fold predicted with constants that have not seen its heads."""
    ratio, mine = np.empty(len(timings)), folds(timings)
    for fold in range(FOLDS):
        others = [one for one, of in zip(timings, mine, strict=True) if of != fold]
        constants = fit(others, gpu, Constants(), plan.free, fold)
        some = [one for one, of in zip(timings, mine, strict=True) if of == fold]
        ratio[mine == fold] = measured(some) / predict(some, gpu, constants)
    return Residuals("own GPU", plan.gpu, ratio)


def scaled(constants: Constants, of: gpus.Gpu, to: gpus.Gpu) -> Constants:
    """A GPU's constants for another, whose power limit may be a different one."""
    clock = to.sustained_share / of.sustained_share
    return constants._replace(efficiency=constants.efficiency * clock, score_cycles=constants.score_cycles / clock)


def calibrate() -> None:
    """Fit, cross-validate and write."""
    timings = read()
    fitted: dict[str, Constants] = {}
    rows: list[tuple[str, dict[str, Any]]] = []
    own, borrowed = [], []
    for plan in PLANS:
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        fitted[plan.generation] = fit(some, gpu, fitted.get(plan.base, Constants()), plan.free)
        if plan.base:
            near = gpu_of(next(other.gpu for other in PLANS if other.generation == plan.base))
            constants = scaled(fitted[plan.base], near, gpu)
            borrowed.append(Residuals("borrowed", plan.gpu, measured(some) / predict(some, gpu, constants)))
        else:
            own.append(cross_validate(some, gpu, plan))
            report(own[-1], own[-1].width())
    for plan, other in ((PLANS[0], PLANS[1]), (PLANS[1], PLANS[0])):
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        constants = scaled(fitted[other.generation], gpu_of(other.gpu), gpu)
        borrowed.append(Residuals("borrowed", plan.gpu, measured(some) / predict(some, gpu, constants)))
    for plan in PLANS:
        gpu, some = gpu_of(plan.gpu), flash(timings[plan.gpu])
        constants = fitted[plan.generation]
        if "backward" not in plan.free:
            constants = constants._replace(backward=fitted[BACKWARD_OF].backward)
            fitted[plan.generation] = constants
        where = BENCHMARKS if plan.base else AICONFIGURATOR
        head = {"generation": plan.generation, "gpu": plan.gpu, "sustained_share": gpu.sustained_share}
        source = {"n": len(some), "source": SOURCE.format(n=len(some), where=where)}
        rows.append(("row", {**head, **constants._asdict(), **source}))
        if plan.base:
            report(Residuals("fitted", plan.gpu, measured(some) / predict(some, gpu, constants)), np.inf)
    others = [one for one in timings["A100-SXM4-40GB"] if not one.kernel]
    gpu = gpus.find("A100-SXM4-40GB")
    sibling = Residuals("own generation", gpu.key, measured(others) / predict(others, gpu, fitted["ampere"]))
    for kernel in KERNELS:
        some = [one for one in timings[gpu.key] if one.kernel == kernel]
        share = share_of(some, gpu, fitted["ampere"])
        rows.append(("share", {"name": kernel, "share": share, "n": len(some), "source": EFFICIENT}))
        ratio = measured(some) / predict(some, gpu, fitted["ampere"], share)
        report(Residuals(kernel, gpu.key, ratio), np.inf)
        sibling = sibling._replace(ratio=np.concatenate([sibling.ratio, ratio]))
    residuals = {"own GPU": own, "own generation": [sibling], "borrowed": borrowed}
    for one in (sibling, *borrowed):
        report(one, one.width())
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


def share_of(timings: list[Timing], gpu: gpus.Gpu, constants: Constants) -> float:
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
            residuals = Residuals(kernel or ("backward" if backward else "flash"), key, ratio)
            report(residuals, residuals.width())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fit nothing: print the errors of the constants")
    only_check = parser.parse_args().check
    print("GPU              distance           n  median     p90    bias  inside")
    if only_check:
        check()
    else:
        calibrate()


if __name__ == "__main__":
    main()
