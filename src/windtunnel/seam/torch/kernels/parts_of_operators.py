"""Operators that are several kernels on CUDA, where the CPU has one operator for all of it.

Source: aten/src/ATen/native/Loss.cpp (binary_cross_entropy_with_logits), SoftMax.cpp (_safe_softmax), TensorAdvanced-
Indexing.cpp (count_nonzero); the memory that they take at once is what an H200 took (tests/conformance/hardware).
The gradient of what selects elements (`max` along a dimension, `sort`, `topk`) is written into its own zeros, unless a
dispatch mode is on (FunctionsManual.cpp, areAnyTensorSubclassLike). `log_sigmoid` keeps a buffer for its gradient on
the CPU alone (Activation.cpp, cuda/ActivationLogSigmoidKernel.cu).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import wide
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

Tensor = torch.Tensor
MEAN, SUM = 1, 2


def logits_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """aten::binary_cross_entropy_with_logits."""
    log_sigmoid = F.logsigmoid(input)
    if pos_weight is not None:
        log_sigmoid.mul_((pos_weight - 1).mul(target).add_(1))
    loss = (1 - target).mul_(input).sub_(log_sigmoid)
    if weight is not None:
        loss.mul_(weight)
    return loss.mean() if reduction == MEAN else loss.sum() if reduction == SUM else loss


def safe_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """aten::_safe_softmax: rows of which all is masked are zero."""
    found = torch.softmax(input, dim, dtype)
    rows = torch.all(input.eq(float("-inf")), dim, keepdim=True)
    return torch.where(rows, torch.scalar_tensor(0.0, dtype=found.dtype, device=found.device), found)


def count_nonzero(input: Tensor, dim: list[int] | int | None = None) -> Tensor:
    """aten::count_nonzero."""
    truths = input != 0
    return truths.sum() if dim is None or dim == [] else truths.sum(dim)


def in_parts(function: Callable[..., object]) -> Handler:
    """A handler that runs an operator as its parts, on a device."""

    def handler(dispatch: Dispatch, call: Call) -> object:
        if "out" in call.kwargs or all(device_of(tensor) < 0 for tensor in call.tensors()):
            return dispatch.general(call)
        with dispatch.parts:
            return function(*call.args, **call.kwargs)

    return handler


def log_sigmoid_forward(input: Tensor) -> tuple[Tensor, Tensor]:
    """aten::log_sigmoid_forward, whose second result is empty on CUDA."""
    out = torch.ops.aten.log_sigmoid_forward.default._op(wide(input))[0]
    return out.to(input.dtype), input.new_empty(0)


def log_sigmoid_backward(grad: Tensor, input: Tensor, buffer: Tensor) -> Tensor:
    """aten::log_sigmoid_backward from the input alone."""
    values = wide(input)
    _, kept = torch.ops.aten.log_sigmoid_forward.default._op(values)
    found: Tensor = torch.ops.aten.log_sigmoid_backward.default._op(wide(grad), values, kept)
    return found.to(grad.dtype)


def selected_backward(
    state: State, func: OpOverload, grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool
) -> Tensor:
    """aten::value_selecting_reduction_backward."""
    if not keepdim and len(sizes) > 0:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(sizes).scatter_(dim, indices, grad)


COMPOSITES = {torch.ops.aten.value_selecting_reduction_backward.default: selected_backward}
"""By operator, for `composites.Composites`."""
HANDLERS = {
    "aten::binary_cross_entropy_with_logits": in_parts(logits_loss),
    "aten::_safe_softmax": in_parts(safe_softmax),
    "aten::count_nonzero": in_parts(count_nonzero),
}
"""Operators with handlers of their own."""
RUN: dict[str, Callable[..., object]] = {
    "aten::log_sigmoid_forward": log_sigmoid_forward,
    "aten::log_sigmoid_backward": log_sigmoid_backward,
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
