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


SHAPES: dict[str, Callable[..., object]] = {
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
