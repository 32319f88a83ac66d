"""Gradients of interpolations in half precision, which CUDA's kernels add up by atomics that round each step.

Each element of the result adds its share to the two or four neighbours along each dimension that it was made of, and
each share is rounded as well. The order is not fixed; ours goes through the neighbours, and the elements of each.

Source: UpSampleLinear1d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu, UpSampleTrilinear3d.cu and UpSample.cuh (in
aten/src/ATen/native/cuda); seen in pytorch/pytorch#104157.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch

from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.halves import HALVES

Tensor = torch.Tensor
aten = torch.ops.aten
SHARPNESS = -0.75
"""The parameter of the cubic, which CUDA's and the CPU's kernels share."""


class Neighbour(NamedTuple):
    """One of those along a dimension: its place and its weight, for each element of the result."""

    place: Tensor
    weight: Tensor


def stepwise(func: OpOverload) -> Callable[..., Tensor]:
    """The gradient's kernel, with sums as atomics make them."""
    kernel: Callable[..., Tensor] = func._op
    cubic = "bicubic" in func._schema.name

    def run(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align: bool, *scales: float | None,
        **kwargs: Tensor,
    ) -> Tensor:  # fmt: skip
        made = kernel(grad, output_size, input_size, align, *scales, **kwargs)
        if grad.dtype not in HALVES or grad.is_meta or not made.numel():
            return made
        sides = [
            neighbours(before, after, align, scale, cubic)
            for before, after, scale in zip(
                input_size[2:], output_size, [*scales, *[None] * (len(output_size) - len(scales))], strict=True
            )
        ]
        return made.copy_(summed(grad, input_size, sides))

    return run


def summed(grad: Tensor, input_size: Sequence[int], sides: Sequence[Sequence[Neighbour]]) -> Tensor:
    """The shares of all elements, one after the other for each place."""
    rows = grad.flatten(2).movedim(2, 0).flatten(1).float()
    columns = rows.shape[1]
    total = torch.zeros(prod(input_size[2:]), columns, dtype=grad.dtype, device="cpu")
    for chosen in product(*sides):
        place, weight = chosen[0]
        for side, size in zip(chosen[1:], input_size[3:], strict=True):
            place = (place[:, None] * size + side.place).flatten()
            weight = (weight[:, None] * side.weight).flatten()
        shares = (rows * weight[:, None]).to(grad.dtype)
        total.put_(place[:, None] * columns + torch.arange(columns, device="cpu"), shares, accumulate=True)
    made: Tensor = total.unflatten(1, tuple(grad.shape[:2])).movedim(0, 2).reshape(tuple(input_size))
    return made


def neighbours(before: int, after: int, align: bool, scale: float | None, cubic: bool) -> list[Neighbour]:
    """Those of each element along one dimension (`area_pixel_compute_source_index`)."""
    places = torch.arange(after, dtype=torch.float32, device="cpu")
    if align:
        source = places * ((before - 1) / (after - 1) if after > 1 else 0.0)
    else:
        source = (places + 0.5) * (1 / scale if scale is not None and scale > 0 else before / after) - 0.5
        source = source if cubic else source.clamp(min=0)
    first = source.floor() if cubic else source.trunc()
    part, first = source - first, first.long()
    if not cubic:
        last = (first + 1).clamp(max=before - 1)
        return [Neighbour(first.clamp(max=before - 1), 1 - part), Neighbour(last, part)]
    weights = (_far(part + 1), _near(part), _near(1 - part), _far(2 - part))
    return [Neighbour((first + step - 1).clamp(0, before - 1), weight) for step, weight in enumerate(weights)]


def _near(x: Tensor) -> Tensor:
    return ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1


def _far(x: Tensor) -> Tensor:
    return ((SHARPNESS * x - 5 * SHARPNESS) * x + 8 * SHARPNESS) * x - 4 * SHARPNESS


NAMES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
RUN = {
    func.name(): stepwise(func)
    for packet in (getattr(aten, f"{name}_backward") for name in NAMES)
    for func in (packet.default, packet.grad_input)
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
