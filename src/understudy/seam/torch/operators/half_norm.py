"""Batch normalization of half precision with parameters of half precision: CUDA's kernels compute it in float32.

So are the statistics that they keep for the backward pass; the CPU's are of the parameters' type and round at every
step. With float32 parameters the CPU does as CUDA. Source: aten/src/ATen/native/cuda/Normalization.cu (`acc_type`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from understudy.seam.torch.operators.halves import HALVES, wide

Tensor = torch.Tensor
stock: Any = torch.ops.aten.native_batch_norm.default._op
stock_backward: Any = torch.ops.aten.native_batch_norm_backward.default._op


def forward(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """aten::native_batch_norm, below autograd: the output, and mean and inverse deviation in float32."""
    given = (weight, bias, running_mean, running_var)
    if not _is_half(input, given):
        return stock(input, *given, training, momentum, eps)
    widened = [wide(tensor) for tensor in given]
    out, mean, invstd = stock(wide(input), *widened, training, momentum, eps)
    for running, value in zip(given[2:], widened[2:], strict=True):
        if training and running is not None and value is not None and value is not running:
            running.copy_(value)
    return out.to(input.dtype), mean, invstd


def backward(
    grad_out: Tensor, input: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, train: bool, eps: float, output_mask: list[bool],
) -> Any:  # fmt: skip
    """aten::native_batch_norm_backward: the gradients of the input, the weight and the bias, each of its own dtype."""
    given = (weight, running_mean, running_var)
    if not _is_half(input, given):
        return stock_backward(grad_out, input, *given, save_mean, save_invstd, train, eps, output_mask)
    widened = [wide(tensor) for tensor in (grad_out, input, *given, save_mean, save_invstd)]
    found = stock_backward(*widened, train, eps, output_mask)
    dtypes = (input.dtype, *[input.dtype if weight is None else weight.dtype] * 2)
    return tuple(None if t is None else t.to(dtype) for t, dtype in zip(found, dtypes, strict=True))


def _is_half(input: Tensor, parameters: tuple[Tensor | None, ...]) -> bool:
    if input.dtype not in HALVES or input.is_meta:
        return False
    return not any(tensor is not None and tensor.dtype is torch.float32 for tensor in parameters)


RUN: dict[str, Callable[..., Any]] = {"aten::native_batch_norm": forward, "aten::native_batch_norm_backward": backward}
"""By name, what `Plan.run` calls instead of PyTorch's own kernel."""
