"""Half precision where CUDA has a kernel and the CPU has none: computed in float32 and rounded, as CUDA's do.

The operators are those whose half precision types PyTorch 2.6's own operator database (`op_db` of
torch/testing/_internal/common_methods_invocations.py) has for CUDA but not for the CPU, in either direction, and those
whose CUDA kernels compute in float32 where the CPU's do not: the grid samplers, gradients of embeddings, `logit` with
its bounds, interpolation and adaptive averages of volumes (ATen/native/cuda/GridSampler.cu, Embedding.cu,
UnarySpecialOpsKernel.cu, UpSample*.cu, AdaptiveAveragePooling3d.cu: `accscalar_t`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES, narrow, wide
from windtunnel.seam.torch.tags import device_of

Tensor = torch.Tensor
TINY = torch.finfo(torch.float32).eps / 2
"""The least that CUDA's exponential distribution gives for a rate of 1 (aten/src/ATen/core/TransformationHelper.h)."""

PLAIN = frozenset({torch.ops.aten.round.default, torch.ops.aten.round_.default, torch.ops.aten.round.out})
"""Their overloads that the CPU has: only rounding to decimals is missing."""


class Widened(SubstituteKernel):
    """An operator whose half precision tensors are made float32 on the way in, and its results half on the way out."""

    def __init__(self, func: OpOverload, dtype: torch.dtype) -> None:
        super().__init__(func)
        self.dtype = dtype

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        widened = [wide(value) for value in args]
        outs = {name: given for name, given in kwargs.items() if self._is_out(name, given)}
        made = {name: torch.empty(0, dtype=torch.float32, device=given.device) for name, given in outs.items()}
        out = self.func(*widened, **{name: wide(value) for name, value in kwargs.items()} | made)
        if outs:
            for name, given in outs.items():
                _maybe_resize_out(given, made[name].shape).copy_(narrow(made[name], self.dtype))
            return next(iter(outs.values())) if isinstance(out, Tensor) else tuple(outs.values())
        for value, given, argument in zip(widened, args, self.func._schema.arguments, strict=False):
            if value is not given and argument.alias_info is not None and argument.alias_info.is_write:
                given.copy_(value)
                out = given if out is value else out
        return narrow(out, self.dtype)

    def _is_out(self, name: str, given: object) -> bool:
        """Whether a keyword is a tensor to write results into, of a type that they fit; C++ refuses the others."""
        argument = next(a for a in self.func._schema.arguments if a.name == name)
        if not (isinstance(given, Tensor) and argument.is_out):
            return False
        exact = self.func is torch.ops.aten.round.decimals_out
        return given.dtype is self.dtype if exact else torch.can_cast(self.dtype, given.dtype)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    half = next((t for t in tensors_in((*args, *kwargs.values())) if t.dtype in HALVES), None)
    return func if half is None or func in PLAIN else Widened(func, half.dtype)


def exponential(dispatch: Dispatch, call: Call) -> object:
    """aten::exponential_: CUDA's never gives zero, the CPU's rounds small numbers to it in half precision."""
    out = dispatch.general(call)
    if out.dtype in HALVES and device_of(out) >= 0 and not out.is_meta:
        rate = call.args[1] if len(call.args) > 1 else call.kwargs.get("lambd", 1.0)
        with torch._C._DisableTorchDispatch():
            torch._C.TensorBase.masked_fill_(out, torch._C.TensorBase.eq(out, 0), TINY / rate)
    return out


_HANDLERS, VALUES = substituted(stating("widened"), _kernel)
HANDLERS = {**_HANDLERS, "aten::exponential_": exponential}
"""Operators with handlers of their own; `VALUES` computes them in a replay."""
