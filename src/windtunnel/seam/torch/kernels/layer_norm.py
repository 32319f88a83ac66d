"""Layer norms of half precision: statistics and the sums over rows stay in float32, as on CUDA.

CUDA's kernels accumulate in float32 and give mean and reciprocal deviation in that type (ATen/native/cuda/
layer_norm_kernel.cu). The CPU's keep both in half precision, and round the gradients of weight and bias after each row.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.halves import HALVES, narrow, wide
from windtunnel.seam.torch.tags import device_of
from windtunnel.seam.torch.type_names import scalar_type

PARAMETERS = {"aten::native_layer_norm": slice(2, 4), "aten::native_layer_norm_backward": slice(5, 7)}
"""By operator: where weight and bias stand among its arguments."""


class LayerNorm(SubstituteKernel):
    """The result in the input's type, the statistics in float32."""

    def __call__(self, x: torch.Tensor, shape: list[int], *rest: object) -> object:
        out, *statistics = self.func(wide(x), shape, *map(wide, rest))
        return narrow(out, x.dtype), *statistics


class LayerNormBackward(SubstituteKernel):
    """Gradients that are rounded once."""

    def __call__(self, grad: torch.Tensor, x: torch.Tensor, *rest: object) -> object:
        return narrow(self.func(wide(grad), wide(x), *map(wide, rest)), x.dtype)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    backward = func is torch.ops.aten.native_layer_norm_backward.default
    x = args[1 if backward else 0]
    for parameter in args[PARAMETERS[func._schema.name]] if device_of(x) >= 0 else ():
        if isinstance(parameter, torch.Tensor) and parameter.dtype is not x.dtype:
            raise RuntimeError(f"expected scalar type {scalar_type(x.dtype)} but found {scalar_type(parameter.dtype)}")
    if x.dtype not in HALVES or x.is_meta:
        return func
    return LayerNormBackward(func) if backward else LayerNorm(func)


HANDLERS, VALUES = substituted(PARAMETERS, _kernel)
"""Operators with handlers of their own; `VALUES` computes them in a replay."""
