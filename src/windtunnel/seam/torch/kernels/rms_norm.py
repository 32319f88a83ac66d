"""RMS norms in one kernel, forward and backward, as on CUDA from PyTorch 2.9 on.

`rms_norm` (aten/src/ATen/native/layer_norm.cpp) decides on every device alike whether it calls `_fused_rms_norm`: not
for channels last, complex numbers, or a weight of another type than the input's. CUDA has a kernel and a gradient for
that (ATen/native/cuda/layer_norm_kernel.cu, FusedRmsNormBackward0), which keeps the input, the weight and a float32
number for each row; the CPU takes it apart. PyTorch 2.8 has an operator of this name for MPS alone.
"""

from __future__ import annotations

import math

import torch

from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.kernels.registered_gradients import ON_CUDA, Key, Keys
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.halves import narrow, wide
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

aten = torch.ops.aten
Tensor = torch.Tensor
C = torch._C
FUSED = hasattr(aten, "_fused_rms_norm") and hasattr(aten, "_fused_rms_norm_backward")
NAMES = ("aten::_fused_rms_norm", "aten::_fused_rms_norm_backward") if FUSED else ()
WATCHING = Keys(Key.Python) | Keys(Key.FuncTorchDynamicLayerBackMode) | Keys(Key.Functionalize)


def by_device(
    state: State, func: OpOverload, input: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
) -> object:
    """CUDA's gradient on a device; elsewhere the parts, which have their own."""
    on_device = device_of(input) >= 0 or (weight is not None and device_of(weight) >= 0)
    if on_device and not input.is_nested:
        return func.redispatch(below_autograd(input) | ON_CUDA, input, shape, weight, eps)
    return func._op_dk(COMPOSITE, input, shape, weight, eps)


def below_autograd(tensor: Tensor) -> torch._C.DispatchKeySet:
    """What an operator on a tensor meets below autograd: a transform of torch.func, a mode."""
    keys = C._dispatch_keys(tensor) | C._dispatch_tls_local_include_set()
    return (keys - C._dispatch_tls_local_exclude_set()) & WATCHING


class RmsNorm(SubstituteKernel):
    """The CPU's parts; half precision is rounded once there as well."""

    def __call__(self, *args: object) -> object:
        return self.func._op_dk(COMPOSITE, *args)


class RmsNormBackward(SubstituteKernel):
    """The gradients of input [*, *shape] and weight [*shape], or None for what `mask` leaves out; rounded once."""

    def __call__(
        self, grad: Tensor, input: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
    ) -> object:
        outer, width = input.dim() - len(shape), math.prod(shape)
        of_input = of_weight = None
        normalized, given = wide(input) * rstd, wide(grad)
        if mask[0]:
            scaled = given if weight is None else given * wide(weight)
            along = (normalized * scaled).sum(tuple(range(outer, input.dim())), keepdim=True)
            of_input = ((scaled - normalized * (along / max(1, width))) * rstd).contiguous()
        if mask[1] and weight is not None:
            product = given * normalized
            of_weight = product.sum(tuple(range(outer))) if outer else product
        return narrow((of_input, of_weight), input.dtype)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    if args[0].is_meta:
        return func
    return RmsNorm(func) if func is aten._fused_rms_norm.default else RmsNormBackward(func)


GRADIENTS = {aten._fused_rms_norm.default: by_device} if FUSED else {}
"""By operator: what chooses its gradient."""
HANDLERS, VALUES = substituted(NAMES, _kernel)
"""Operators with handlers of their own, and what computes them in a replay."""
