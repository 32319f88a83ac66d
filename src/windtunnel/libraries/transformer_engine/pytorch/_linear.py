"""A product with weights, in the tensors' own type or in 8 bits, forward and backward."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

from ._scales import Quantized, Scales
from .quantization import formats, renew_all

Tensor = torch.Tensor


class Told(NamedTuple):
    """What a product in 8 bits is told: the layer's scales, which product of the layer it is, the result's type.

    `kept` holds weights of an earlier microbatch in 8 bits, and `last` says that the layer is the first of its block,
    whose backward pass is the last.
    """

    scales: Scales
    number: int
    dtype: torch.dtype
    kept: dict[int, Quantized]
    first_microbatch: bool | None
    last: bool


def _product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype, fast: bool) -> Tensor:
    """Rows by rows of factors in 8 bits."""
    out: Tensor = torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=dtype, use_fast_accum=fast)
    return out


class _InEightBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, told):  # type: ignore[no-untyped-def]
        there, back = formats(told.scales.recipe)
        wanted = any(ctx.needs_input_grad)
        inward = told.scales.quantize(x, False, 3 * told.number, there, wanted and ctx.needs_input_grad[1])
        weights = told.kept.get(told.number) if told.first_microbatch is False else None
        if weights is None:
            weights = told.scales.quantize(weight, False, 3 * told.number + 1, there, wanted)
            if told.first_microbatch is not None:
                told.kept[told.number] = weights
        fast = told.scales.recipe.float8_per_tensor_scaling()
        half = bias is not None and told.dtype is not torch.float32
        out = torch._scaled_mm(
            inward.rows, weights.rows.t(), inward.row_scale, weights.row_scale,
            bias=bias.to(told.dtype) if half else None, out_dtype=told.dtype, use_fast_accum=fast,
        )  # fmt: skip
        if bias is not None and not half:
            out = out + bias
        ctx.save_for_backward(inward.columns, inward.column_scale, *weights)
        ctx.told, ctx.back, ctx.of_weight = told, back, weight.dtype
        ctx.of_bias = None if bias is None else bias.dtype
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, x_scale, *_, weights, weight_scale = ctx.saved_tensors
        told = ctx.told
        given = told.scales.quantize(grad.contiguous(), True, 2 * told.number, ctx.back, ctx.needs_input_grad[1])
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _product(given.rows, given.row_scale, weights, weight_scale, told.dtype, False)
        if ctx.needs_input_grad[1]:
            if given.columns.shape[1] % 16:
                raise RuntimeError("Leading dimension requirement on A for FP8 GEMM. Caller must pad.")
            of_weight = _product(given.columns, given.column_scale, x, x_scale, told.dtype, False).to(ctx.of_weight)
        if ctx.of_bias is not None and ctx.needs_input_grad[2]:
            of_bias = grad.sum(0, dtype=torch.float32).to(ctx.of_bias)
        if told.last:
            renew_all(forward=False)
        return of_x, of_weight, of_bias, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, told: Told | None) -> Tensor:
    """x @ weight.T + bias.

    Raises:
        ValueError: sizes that products in 8 bits do not take.
    """
    with torch.autocast("cuda", enabled=False):
        if told is None:
            return F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        for tensor in (x, weight):
            rows = math.prod(tensor.shape[:-1])
            if rows % 8 or tensor.shape[-1] % 16:
                raise ValueError(
                    "FP8 execution requires the product of all dimensions except the last to be divisible by 8 and the "
                    f"last dimension to be divisible by 16, but got tensor with dims={list(tensor.shape)} (product of "
                    f"leading dims = {rows}, last dim = {tensor.shape[-1]})"
                )
        out: Tensor = _InEightBits.apply(x.reshape(-1, x.shape[-1]), weight, bias, told)
        return out.view(*x.shape[:-1], weight.shape[0])


class _Joined(torch.autograd.Function):
    """Parameters that lie behind one another, as one tensor."""

    @staticmethod
    def forward(ctx, *parts):  # type: ignore[no-untyped-def]
        ctx.sizes = [part.shape[0] for part in parts]
        first = parts[0]
        place, adjacent = first.storage_offset(), True
        for part in parts:
            adjacent &= part.untyped_storage()._cdata == first.untyped_storage()._cdata
            adjacent &= part.is_contiguous() and part.storage_offset() == place
            place += part.numel()
        if not adjacent:
            return torch.cat(parts)
        return first.as_strided((sum(ctx.sizes), *first.shape[1:]), first.stride(), first.storage_offset())

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return tuple(grad.split(ctx.sizes))


def joined(parts: list[Tensor]) -> Tensor:
    """The rows of all parts; no copy where they are parts of one tensor."""
    if len(parts) == 1:
        return parts[0]
    whole: Tensor = _Joined.apply(*parts)
    return whole
