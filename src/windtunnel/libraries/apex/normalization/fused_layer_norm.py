"""`apex.normalization.fused_layer_norm`: layer norms and RMS norms, with and without weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.described import kernel
from windtunnel.libraries import refuse, unanswered

LIBRARY = "apex 0.1"
SCALARS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
Tensor = torch.Tensor
Shape = int | Sequence[int]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "apex.normalization.fused_layer_norm", name)


def _sizes(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _not_efficient(memory_efficient: bool) -> None:
    if memory_efficient:
        unanswered(LIBRARY, "a norm with memory_efficient", "leave it out: it keeps the result instead of the input")


def _by_pytorch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: Sequence[int], eps: float, rms: bool
) -> Tensor:
    if rms:
        return F.rms_norm(x, tuple(sizes), weight, eps)
    return F.layer_norm(x, tuple(sizes), weight, bias, eps)


@kernel(
    "apex::norm_mixed_dtypes",
    like="aten::native_layer_norm",
    define="(Tensor x, Tensor weight, Tensor? bias, int[] sizes, float eps, bool rms) -> Tensor",
)
def _mixed(x, weight, bias, sizes, eps, rms):  # type: ignore[no-untyped-def]
    """The norm in the weight's type."""
    wide = None if bias is None else bias.float()
    return _by_pytorch(x.float(), weight.float(), wide, sizes, eps, rms).to(weight.dtype)


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: tuple[int, ...], eps: float, rms: bool,
    mixed: bool = False, memory_efficient: bool = False,
) -> Tensor:  # fmt: skip
    """A norm as the library's kernels compute it: its tensors are cast where autocast is on, and have one type else."""
    _not_efficient(memory_efficient)
    if not x.is_cuda:
        return _by_pytorch(x, weight, bias, sizes, eps, rms)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x = x.to(dtype)
        weight, bias = (one if one is None else one.to(dtype) for one in (weight, bias))
    with torch.autocast("cuda", enabled=False):
        if weight is None or weight.dtype is x.dtype:
            return _by_pytorch(x, weight, bias, sizes, eps, rms)
        if not mixed:
            raise RuntimeError(f"expected scalar type {SCALARS[x.dtype]} but found {SCALARS[weight.dtype]}")
        out: Tensor = torch.ops.apex.norm_mixed_dtypes(x, weight, bias, sizes, eps, rms)
        return out


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """A layer norm without weights."""
    return _norm(input, None, None, _sizes(normalized_shape), eps, False, False, memory_efficient)


def fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:  # fmt: skip
    """A layer norm whose weights have the input's type."""
    return _norm(input, weight, bias, _sizes(normalized_shape), eps, False, False, memory_efficient)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:  # fmt: skip
    """A layer norm whose result has the weights' type."""
    return _norm(input, weight, bias, _sizes(normalized_shape), eps, False, True, memory_efficient)


def fused_rms_norm(input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    """An RMS norm without weights."""
    return _norm(input, None, None, _sizes(normalized_shape), eps, True, False, memory_efficient)


def fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """An RMS norm whose weight has the input's type."""
    return _norm(input, weight, None, _sizes(normalized_shape), eps, True, False, memory_efficient)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """An RMS norm whose result has the weight's type."""
    return _norm(input, weight, None, _sizes(normalized_shape), eps, True, True, memory_efficient)


class _Norm(nn.Module):
    """What all norms have."""

    rms = mixed = False

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        _not_efficient(memory_efficient)
        if self.mixed and not elementwise_affine:
            raise RuntimeError(f"{type(self).__name__} does not support `elementwise_affine = False`")
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        self.memory_efficient = memory_efficient
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        if elementwise_affine:
            self.weight = nn.Parameter(torch.ones(self.normalized_shape))
        if elementwise_affine and not self.rms:
            self.bias = nn.Parameter(torch.zeros(self.normalized_shape))

    def forward(self, input: Tensor) -> Tensor:
        """The norm of the last dimensions."""
        return _norm(input, self.weight, self.bias, self.normalized_shape, self.eps, self.rms, self.mixed)


class FusedLayerNorm(_Norm):
    """A layer norm."""


class FusedRMSNorm(_Norm):
    """An RMS norm."""

    rms = True


class MixedFusedLayerNorm(FusedLayerNorm):
    """A layer norm whose result has its weights' type."""

    mixed = True


class MixedFusedRMSNorm(FusedRMSNorm):
    """An RMS norm whose result has its weight's type."""

    mixed = True
