"""Shapes of results for which PyTorch has no meta kernel, for a rehearsal without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor


def sample_dirichlet(concentration: Tensor, generator: object = None) -> Tensor:
    """aten::_sample_dirichlet: a sample of the concentration's shape."""
    return torch.empty_like(concentration)


def dirichlet_grad(x: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    """aten::_dirichlet_grad: a derivative of the sample's shape."""
    return torch.empty_like(x)


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """aten::_ctc_loss: losses of shape (batch,), and alphas of shape (batch, time, 2 x longest target + 1).

    `log_probs` is of shape (time, batch, classes). Source: ctc_loss_gpu_template in
    aten/src/ATen/native/cuda/LossCTC.cu.
    """
    time, batch = log_probs.shape[:2]
    states = 2 * max(target_lengths, default=0) + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, states))


def ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
    neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """aten::_ctc_loss_backward: a gradient of the log-probabilities' shape."""
    return torch.empty_like(log_probs)


def cudnn_ctc_loss(log_probs: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    """aten::_cudnn_ctc_loss: losses of shape (batch,), and a gradient of the log-probabilities' shape."""
    return log_probs.new_empty((log_probs.shape[1],)), torch.empty_like(log_probs)


def batch_norm(input: Tensor, *others: object) -> tuple[Tensor, ...]:
    """aten::native_batch_norm: PyTorch's meta kernel makes statistics in evaluation too, which no other kernel does."""
    out, mean, invstd = torch.ops.aten.native_batch_norm.default(input, *others)
    training = others[4]
    return (out, mean, invstd) if training else (out, mean.new_empty(0), invstd.new_empty(0))


def log_sigmoid(input: Tensor) -> tuple[Tensor, Tensor]:
    """aten::log_sigmoid_forward: CUDA's needs no buffer for the gradient."""
    return torch.empty_like(input), input.new_empty(0)


def lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: object) -> tuple[Tensor, ...]:
    """aten::_thnn_fused_lstm_cell: both states, and the gates."""
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(input_gates)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, None]:
    """aten::_thnn_fused_lstm_cell_backward_impl: gradients of the gates and of the cell state."""
    return torch.empty_like(workspace), torch.empty_like(cx), None


def gru_cell(input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: object) -> tuple[Tensor, Tensor]:
    """aten::_thnn_fused_gru_cell: the hidden state, and five of its size for the gradient."""
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """aten::_thnn_fused_gru_cell_backward: gradients of both products, and of the hidden state."""
    rows, units = grad_hy.shape
    of_input, of_hidden = (grad_hy.new_empty((rows, 3 * units)) for _ in range(2))
    return of_input, of_hidden, torch.empty_like(grad_hy), None, None


def efficient_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, *others: object,
    shared_storage_dqdkdv: bool = False, **settings: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """aten::_efficient_attention_backward: PyTorch's meta function lacks its `out`, so the arguments after it slip.

    Source: the meta function itself (torch/_meta_registrations.py), and `_efficient_attention_backward` of
    aten/src/ATen/native/transformers/cuda/attention_backward.cu.
    """
    if shared_storage_dqdkdv:
        packed = query.new_empty((*query.shape[:-2], 3, *query.shape[-2:]))
        first, second, third = packed.unbind(-3)
    else:
        first, second, third = (torch.empty_like(tensor) for tensor in (query, key, value))
    if bias is None:
        return first, second, third, query.new_empty(())
    last = bias.shape[-1]
    of_bias = bias.new_empty((*bias.shape[:-1], -(-last // 16) * 16))
    return first, second, third, of_bias[..., :last]


def rms_norm(input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """aten::_fused_rms_norm: the input's shape, and a number a row in FP32 at least; PyTorch's parts take 2 ms."""
    rows = input.shape[: input.dim() - len(shape)] + (1,) * len(shape)
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    return torch.empty_like(input, memory_format=torch.contiguous_format), input.new_empty(rows, dtype=wide)


def rms_norm_backward(
    grad: Tensor, input: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """aten::_fused_rms_norm_backward: gradients of the input and of the weight, where they are wanted."""
    of_weight = torch.empty_like(weight) if mask[1] and weight is not None else None
    return torch.empty_like(input, memory_format=torch.contiguous_format) if mask[0] else None, of_weight


SHAPES: dict[str, Callable[..., object]] = {
    "aten::_fused_rms_norm": rms_norm,
    "aten::_fused_rms_norm_backward": rms_norm_backward,
    "aten::_efficient_attention_backward": efficient_attention_backward,
    "aten::log_sigmoid_forward": log_sigmoid,
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
    "aten::_sample_dirichlet": sample_dirichlet,
    "aten::_dirichlet_grad": dirichlet_grad,
    "aten::_cudnn_ctc_loss": cudnn_ctc_loss,
    "aten::native_batch_norm": batch_norm,
    "aten::_ctc_loss": ctc_loss,
    "aten::_ctc_loss_backward": ctc_loss_backward,
}
"""By an operator's name, what gives results of its shapes, on meta."""


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """aten::mish_backward: a gradient of the input's shape."""
    return torch.empty_like(x)


WHOLE: dict[str, Callable[..., object]] = {"mish_backward": mish_backward}
"""Operators that have a kernel of CUDA and a composite one: without a meta kernel PyTorch takes the composite one for
tensors without values, whose parts CUDA does not run."""


def keep_whole() -> Callable[[], None]:
    """Give `WHOLE` their meta kernels; what takes them out again."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in WHOLE.items():
        library.m.impl(name, "Meta", kernel)  # type: ignore[union-attr]  # `Library.impl` refuses composite operators
    return library._destroy
