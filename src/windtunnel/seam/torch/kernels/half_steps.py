"""Losses and thresholds whose CUDA kernels compute in half precision itself: they round after each step.

Their numbers are rounded to the elements' type first; the CPU's kernels compute in float32 and round once. Source:
PointwiseOpsKernel.cu, BinaryMiscOpsKernels.cu and Activation{Threshold,Hardshrink,Softshrink}Kernel.cu (in
aten/src/ATen/native/cuda), where `scalar_t` is c10::Half or c10::BFloat16; `::abs` of such a number gives a float.
(`mse_loss` and `binary_cross_entropy` round after each step on the CPU too.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.halves import HALVES, wide

Tensor = torch.Tensor
Steps = Callable[..., Tensor]

OVERFLOWS = "value cannot be converted to type c10::{} without overflow"
NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
NONE, MEAN = 0, 1
"""Values of `at::Reduction`; the third is the sum."""


def rounded(value: float, dtype: torch.dtype) -> float:
    """A number in a half precision type; raises RuntimeError where it is finite and too large."""
    if math.isfinite(value) and abs(value) > torch.finfo(dtype).max:
        raise RuntimeError(OVERFLOWS.format(NAMES[dtype]))
    return torch.tensor(value, dtype=dtype).item()


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == NONE else loss.mean() if reduction == MEAN else loss.sum()


def _norm(self: Tensor, reduction: int) -> float:
    return rounded(1 / self.numel() if reduction == MEAN and self.numel() else 1.0, self.dtype)


# ---------------------------------------------------------------------- losses


def _distance(self: Tensor, target: Tensor) -> Tensor:
    """Rounded, and a float from here on."""
    difference = wide(self - target)
    assert isinstance(difference, Tensor)
    return difference.abs()


def smooth_l1_loss(self: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """Of a rounded difference."""
    beta = rounded(beta, self.dtype)
    half = rounded(0.5 * beta, self.dtype)
    z = _distance(self, target)
    return _reduced(torch.where(z < beta, 0.5 * z * z / beta, z - half).to(self.dtype), reduction)


def smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """Its gradient."""
    norm, beta = _norm(self, reduction), rounded(beta, self.dtype)
    x = self - target
    return torch.where(
        x < -beta,
        grad_output * -norm,
        torch.where(x > beta, grad_output * norm, x * norm * grad_output / beta),
    )


def huber_loss(self: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """Of a rounded difference."""
    delta = rounded(delta, self.dtype)
    half = rounded(0.5 * delta, self.dtype)
    z = _distance(self, target)
    return _reduced(torch.where(z < delta, 0.5 * z * z, delta * (z - half)).to(self.dtype), reduction)


def huber_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """Its gradient."""
    norm, delta = _norm(self, reduction), rounded(delta, self.dtype)
    x = self - target
    return torch.where(
        x < -delta,
        grad_output * -norm * delta,
        torch.where(x > delta, grad_output * norm * delta, x * norm * grad_output),
    )


STEPS: dict[str, Steps] = {
    f"aten::{steps.__name__}": steps
    for steps in (
        smooth_l1_loss, smooth_l1_loss_backward, huber_loss, huber_loss_backward,
    )
}  # fmt: skip
ROUNDING = ("threshold", "threshold_", "threshold_backward", "hardshrink", "hardshrink_backward", "softshrink",
            "softshrink_backward")  # fmt: skip
"""What only has its numbers rounded: no more than one step follows."""


class Stepwise(SubstituteKernel):
    """A loss, step by step."""

    def __init__(self, func: OpOverload, steps: Steps) -> None:
        super().__init__(func)
        self.steps = steps

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        given = (kwargs.pop(name, None) for name in ("out", "grad_input"))
        outs = [value for value in given if isinstance(value, Tensor)]
        made = self.steps(*args, **kwargs)
        return _maybe_resize_out(outs[0], made.shape).copy_(made) if outs else made


class Rounding(SubstituteKernel):
    """The operator with its numbers in a half precision type."""

    def __init__(self, func: OpOverload, dtype: torch.dtype) -> None:
        super().__init__(func)
        self.dtype = dtype

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.func(*map(self._number, args), **{name: self._number(value) for name, value in kwargs.items()})

    def _number(self, value: object) -> object:
        return rounded(value, self.dtype) if isinstance(value, (int, float)) else value


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    dtype = tensors[0].dtype
    if dtype not in HALVES or any(tensor.dtype is not dtype for tensor in tensors):
        return func
    steps = STEPS.get(func._schema.name)
    if steps is None:
        return Rounding(func, dtype)
    limits = [value for value in (*args[2:], kwargs.get("beta"), kwargs.get("delta")) if isinstance(value, float)]
    return Stepwise(func, steps) if all(limit > 0 for limit in limits) else func


HANDLERS, VALUES = substituted((*STEPS, *(f"aten::{name}" for name in ROUNDING)), _kernel)
