"""Interpolations of images, which multiprocessors bound and memory does not.

Some have a thread for each place, which goes through all planes (aten/src/ATen/native/cuda/UpSampleBilinear2d.cu,
UpSampleBicubic2d.cu). Its step, from loads to store, is as long whether a block of threads has a multiprocessor to
itself or not, so images that the GPU can hold at once take

    images * channels * cycles of a step

Others have a thread for each element of the larger images. The cycles are an H200's, of the nearest ones an H100's
(`make hardware`: 64 x 256 x 56 x 56 and 256 x 64 x 112 x 112 to twice their sides, which agree within 15 %). Bicubic
results of up to `SMALL` places are spread over blocks since PyTorch 2.12 (a B200's times in pytorch/pytorch#174578).

With antialiasing each result is a sum over a window that grows with the scale, by threads in rows of `PADDED` (an
A100's times in pytorch/pytorch#127082).
"""

from __future__ import annotations

from math import ceil, prod

from windtunnel.cost.families.problem import Problem

PLANE_CYCLES = {
    "upsample_bilinear2d": (800.0, 800.0),
    "upsample_bicubic2d": (1_300.0, 1_360.0),
    "upsample_bicubic2d channels last": (10_400.0, 10_900.0),
    "upsample_bicubic2d_backward": (4_650.0, 52_000.0),
    "upsample_bicubic2d_backward channels last": (4_950.0, 52_000.0),
}
"""Of a step of a thread, in 32 and in 16 bits, whose gradients are added by turns."""
ELEMENT_CYCLES = {
    "upsample_bilinear2d channels last": (2.25, 2.3),
    "upsample_bilinear2d_backward": (2.35, 5.4),
    "upsample_bilinear2d_backward channels last": (2.2, 3.1),
    "upsample_nearest2d": (0.68, 0.68),
    "upsample_nearest2d channels last": (1.55, 1.55),
}
"""Of an element of the larger images."""
SMALL, SMALL_CYCLES = 18_432, 4.7
"""Places of a bicubic result whose planes blocks share (UpSampleBicubic2d.cu), and the cycles of an element then."""
SUPPORT = {"_upsample_bilinear2d_aa": 1.0, "_upsample_bicubic2d_aa": 2.0}
"""How far a filter reaches to either side, in pixels of the smaller image (UpSample.cuh)."""
PADDED, WINDOW_CYCLES = 16, 0.38
"""Of an element of a window."""


def planes_ns(problem: Problem) -> float:
    """What the multiprocessors need; 0.0 for other kernels."""
    gpu, name, detail = problem.gpu, problem.name, dict(problem.signature.detail)
    outputs = problem.signature.shapes[problem.signature.inputs :]
    given, made = problem.inputs[0] if problem.inputs else (), outputs[0] if outputs else ()
    if len(given) != 4 or len(made) != 4:
        return 0.0
    if name in SUPPORT:
        return gpu.spread_ns(WINDOW_CYCLES * smoothed(given, made, SUPPORT[name]))
    large = given if name.endswith("_backward") else made
    if detail.get("together") and prod(large[2:]) <= SMALL:
        return gpu.spread_ns(SMALL_CYCLES * prod(large))
    kind, small_items = name + " channels last" * bool(detail.get("channels_last")), problem.item_bytes < 4
    if kind in PLANE_CYCLES:
        turns = max(1.0, prod(large[2:]) / (gpu.sm_count * gpu.max_threads_per_sm))
        return 1000.0 * PLANE_CYCLES[kind][small_items] * prod(large[:2]) * turns / gpu.cycles_per_us
    return gpu.spread_ns(ELEMENT_CYCLES[kind][small_items] * prod(large)) if kind in ELEMENT_CYCLES else 0.0


def smoothed(given: tuple[int, ...], made: tuple[int, ...], support: float) -> float:
    """Elements of the windows of all results, in rows of whole groups of threads."""
    windows = [
        2 * ceil(support * max(1.0, before / after)) + 1 for before, after in zip(given[2:], made[2:], strict=True)
    ]
    return prod(made[:3]) * ceil(made[3] / PADDED) * PADDED * prod(windows)
