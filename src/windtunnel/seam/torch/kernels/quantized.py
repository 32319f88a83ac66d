"""Quantization of numbers that are none, and of very large ones: CUDA saturates them, the CPU by kernel and vector.

CUDA makes a 64-bit integer of the rounded number, which for NaN is the least, and limits that. Source:
AffineQuantizer.cu and FakeQuantizeCore.cu (in aten/src/ATen/native/quantized/cuda); seen in pytorch/pytorch#153340.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
LARGEST = 2.0**40
"""Beyond all quantized numbers, and within what a conversion to 64 bits takes."""


def without_nan(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel, with what comes to the same as NaN in its place."""

    def run(self: Tensor, *args: object, **kwargs: object) -> Tensor:
        is_real = isinstance(self, Tensor) and self.is_floating_point() and not self.is_meta
        return kernel(_real(self) if is_real else self, *args, **kwargs)

    return run


def _real(tensor: Tensor) -> Tensor:
    nan = tensor.isnan()
    return tensor.masked_fill(nan, -math.inf) if bool(nan.any()) else tensor


def by_channel(self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, *limits: int) -> Sequence[Tensor]:
    """aten::fake_quantize_per_channel_affine_cachemask."""
    kernel = aten.fake_quantize_per_channel_affine_cachemask.default
    if self.is_meta or scale.dim() != 1 or not -self.dim() <= axis < self.dim() or scale.numel() != self.shape[axis]:
        return kernel(self, scale, zero_point, axis, *limits)  # type: ignore[no-any-return]
    most = (scale * LARGEST).clamp(max=torch.finfo(self.dtype).max)
    most = most.view(-1, *(1,) * (self.dim() - axis % self.dim() - 1)).to(self.dtype)
    bounded = torch.minimum(torch.maximum(_real(self), -most), most)
    found: Sequence[Tensor] = kernel(bounded, scale, zero_point, axis, *limits)
    return found


QUANTIZE = ("quantize_per_tensor", "quantize_per_channel")
RUN: dict[str, Callable[..., object]] = {
    **{
        func.name(): without_nan(func._op)
        for packet in (getattr(aten, name) for name in QUANTIZE)
        for func in (getattr(packet, overload) for overload in packet.overloads())
        if str(func._schema.arguments[0].type) == "Tensor"
    },
    "aten::fake_quantize_per_channel_affine_cachemask": by_channel,
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
