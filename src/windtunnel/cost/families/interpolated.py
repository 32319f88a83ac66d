"""Interpolations of images, which multiprocessors bound and memory does not.

Some have a thread for each place, which goes through all planes (aten/src/ATen/native/cuda/UpSampleBilinear2d.cu,
UpSampleBicubic2d.cu). Its step, from loads to store, is as long whether a block of threads has a multiprocessor to
itself or not, so images that the GPU can hold at once take

    images * channels * cycles of a step

Others have a thread for each element of the larger images. The cycles are an H200's, of the nearest ones an H100's
(`make hardware`: 64 x 256 x 56 x 56 and 256 x 64 x 112 x 112 to twice their sides, which agree within 15 %).
"""

from __future__ import annotations

from math import prod

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


def planes_ns(problem: Problem) -> float:
    """What the multiprocessors need; 0.0 for other kernels."""
    last = " channels last" if dict(problem.signature.detail).get("channels_last") else ""
    plane, element = PLANE_CYCLES.get(problem.name + last), ELEMENT_CYCLES.get(problem.name + last)
    outputs = problem.signature.shapes[problem.signature.inputs :]
    large = problem.inputs[0] if problem.name.endswith("_backward") else outputs[0] if outputs else ()
    gpu, small_items = problem.gpu, problem.item_bytes < 4
    if len(large) != 4:
        return 0.0
    if plane is not None:
        turns = max(1.0, prod(large[2:]) / (gpu.sm_count * gpu.max_threads_per_sm))
        return 1000.0 * plane[small_items] * prod(large[:2]) * turns / gpu.cycles_per_us
    return gpu.spread_ns(element[small_items] * prod(large)) if element is not None else 0.0
