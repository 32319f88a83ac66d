"""Batch normalization: the operators of SyncBatchNorm, and half precision with parameters of half precision.

- Only CUDA builds have SyncBatchNorm's: they are computed from others, as their kernels do. Formulas and dtypes are
  those of aten/src/ATen/native/cuda/Normalization.cuh: statistics are of the accumulation type, which for half
  precision is float32, and those of several ranks are merged by Welford's method.
- CUDA's kernels compute half precision in float32, and so are the statistics that they keep for the backward pass; the
  CPU's are of the parameters' type and round at every step. With float32 parameters the CPU does as CUDA. Source:
  native/cuda/Normalization.cu (`acc_type`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES, wide
from windtunnel.seam.torch.type_names import tensor_type

Tensor = torch.Tensor
stock = torch.ops.aten.native_batch_norm.default._op
OTHER_TYPE = (
    "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but type {} "
    "does not equal {} (while checking arguments for cudnn_batch_norm)"
)
"""aten/src/ATen/native/cudnn/BatchNorm.cpp; half precision is taken with weights in float32."""
stock_backward = torch.ops.aten.native_batch_norm_backward.default._op
ACCUMULATED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation of each channel (dimension 1), each of shape (channels,)."""
    values = _accumulated(input)
    variance, mean = torch.var_mean(values, dim=_rest(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def gather_with_counts(
    input: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One mean and inverse deviation from those of several parts, of shape (parts, channels) and counts (parts,).

    The running statistics are updated in place.
    """
    count = counts.reshape(-1, 1).to(mean.dtype)
    total = count.sum()
    merged = (mean * count).sum(0) / total
    within = ((1 / invstd**2 - eps) * count).sum(0)
    summed = within + (count * (mean - merged) ** 2).sum(0)
    for running, value in ((running_mean, merged), (running_var, summed / (total - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(value.to(running.dtype), alpha=momentum)
    return merged, torch.rsqrt(summed / total + eps)


def gather(
    input: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same where every part counts `count`."""
    counts = mean.new_full((mean.shape[0],), count)
    return gather_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The normalized input, scaled and shifted, of the input's dtype."""
    out = (_accumulated(input) - _spread(mean, input)) * _spread(invstd, input)
    if weight is not None:
        out = out * _spread(weight, input)
    if bias is not None:
        out = out + _spread(bias, input)
    return out.to(input.dtype)


def backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Sums over all but the channels: of the gradient, of it times the centred input, and the parameters' gradients."""
    grad = _accumulated(grad_out)
    rest = _rest(input)
    sum_dy = grad.sum(rest)
    sum_dy_xmu = (grad * (_accumulated(input) - _spread(mean, input))).sum(rest)
    dtype = input.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd).to(dtype) if weight_g else None,
        sum_dy.to(dtype) if bias_g else None,
    )


def backward_elemt(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None,
    sum_dy: Tensor, sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """The input's gradient, of the input's dtype, from the sums of all parts."""
    total = count.sum()
    centred = _accumulated(input) - _spread(mean, input)
    scale = invstd if weight is None else invstd * weight
    inner = _accumulated(grad_out) - _spread(sum_dy / total, input)
    inner = inner - centred * _spread(invstd**2 * sum_dy_xmu / total, input)
    return (inner * _spread(scale, input)).to(input.dtype)


def _accumulated(tensor: Tensor) -> Tensor:
    return tensor.to(ACCUMULATED.get(tensor.dtype, tensor.dtype))


def _rest(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def values(dispatch: Dispatch, call: Call) -> object:
    """What one of the operators gives, or puts into `out`."""
    kwargs = dict(call.kwargs)
    into = kwargs.pop("out", None)
    found = dispatch.compute(call.but(func=COMPUTED[call.plan.name], kwargs=kwargs))
    return found if into is None else into.copy_(found)


def handle(dispatch: Dispatch, call: Call) -> object:
    """Compute and submit one of the operators."""
    dispatch.scan(call)
    if call.device < 0:
        return call.func(*call.args, **call.kwargs)  # refuses that
    out = values(dispatch, call)
    dispatch.tag([part for part in (out if isinstance(out, tuple) else (out,)) if part is not None], call.device)
    dispatch.submit(call, out)
    return out


# ---------------------------------------------------------------------------------------------- half precision


def forward(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> object:  # fmt: skip
    """aten::native_batch_norm, below autograd: the output, and mean and inverse deviation in float32."""
    given = (weight, bias, running_mean, running_var)
    if not _is_half(input, given):
        if weight is not None and input.dtype not in (*HALVES, weight.dtype):
            raise RuntimeError(OTHER_TYPE.format(*(tensor_type(one.dtype, on_device=True) for one in (input, weight))))
        return stock(input, *given, training, momentum, eps)
    widened = [wide(tensor) for tensor in given]
    out, mean, invstd = stock(wide(input), *widened, training, momentum, eps)
    for running, value in zip(given[2:], widened[2:], strict=True):
        if training and running is not None and value is not None and value is not running:
            running.copy_(value)
    return out.to(input.dtype), mean, invstd


def without_stats(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> object:
    """aten::_native_batch_norm_legit.no_stats."""
    return forward(input, weight, bias, None, None, training, momentum, eps)


def with_update(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> object:  # fmt: skip
    """aten::_batch_norm_with_update: beside the three, what cuDNN reserves, which is nothing."""
    found = forward(input, weight, bias, running_mean, running_var, True, momentum, eps)
    assert isinstance(found, tuple)
    return *found, input.new_empty(0, dtype=torch.uint8)


def backward(
    grad_out: Tensor, input: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, train: bool, eps: float, output_mask: list[bool],
) -> object:  # fmt: skip
    """aten::native_batch_norm_backward: the gradients of the input, the weight and the bias, each of its own dtype."""
    given = (weight, running_mean, running_var)
    if output_mask[0] and (train or output_mask[1] or output_mask[2]):
        _check_fused(input, weight, running_mean)
    if not _is_half(input, given):
        return stock_backward(grad_out, input, *given, save_mean, save_invstd, train, eps, output_mask)
    widened = [wide(tensor) for tensor in (grad_out, input, *given, save_mean, save_invstd)]
    found = stock_backward(*widened, train, eps, output_mask)
    dtypes = (input.dtype, *[input.dtype if weight is None else weight.dtype] * 2)
    return tuple(None if t is None else t.to(dtype) for t, dtype in zip(found, dtypes, strict=True))


def _check_fused(input: Tensor, weight: Tensor | None, running_mean: Tensor | None) -> None:
    """Raise PyTorch's error where the fused kernel finds statistics of another type than its input and weight.

    Source: `batch_norm_backward_cuda` in aten/src/ATen/native/cuda/Normalization.cu; images whose channels are apart
    take that kernel.
    """
    if input.dtype not in HALVES or running_mean is None or running_mean.dtype is input.dtype:
        return
    channels_last = any(
        input.dim() == dim and input.is_contiguous(memory_format=layout)
        for dim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d))
    )
    together = channels_last or (input.is_contiguous() and input.stride(1) == 1)
    if weight is not None and weight.dtype is input.dtype and not together:
        raise RuntimeError(f"Expected running_mean to have type {HALVES_NAMES[input.dtype]} but got Float")


def _is_half(input: Tensor, parameters: tuple[Tensor | None, ...]) -> bool:
    """Whether the CPU's kernel needs float32 instead: beside half precision it takes parameters in float32 alone."""
    if input.dtype not in HALVES or input.is_meta:
        return False
    given = [tensor for tensor in parameters if tensor is not None]
    return not given or any(tensor.dtype in HALVES for tensor in given)


HALVES_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
COMPUTED: dict[str, Callable[..., object]] = {
    "aten::batch_norm_stats": stats,
    "aten::batch_norm_gather_stats": gather,
    "aten::batch_norm_gather_stats_with_counts": gather_with_counts,
    "aten::batch_norm_elemt": elemt,
    "aten::batch_norm_backward_reduce": backward_reduce,
    "aten::batch_norm_backward_elemt": backward_elemt,
}

HANDLERS = dict.fromkeys(COMPUTED, handle)
"""Operators with handlers of their own."""
VALUES = dict.fromkeys(COMPUTED, values)
"""What computes operators for which the CPU has no kernel, for a replay that has all the rest."""
RUN: dict[str, Callable[..., object]] = {
    "aten::native_batch_norm": forward,
    "aten::_native_batch_norm_legit": forward,
    "aten::_native_batch_norm_legit.no_stats": without_stats,
    "aten::_batch_norm_with_update": with_update,
    "aten::native_batch_norm_backward": backward,
}
"""By name, what `Plan.run` calls instead of PyTorch's own kernel."""
