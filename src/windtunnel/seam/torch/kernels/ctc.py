"""The CTC loss: on CUDA cuDNN computes it with its gradient where it can, and another kernel, of int64, elsewhere.

Sources: ctc_loss in aten/src/ATen/native/LossCTC.cpp; `_use_cudnn_ctc_loss` and `_cudnn_ctc_loss` in
native/cudnn/LossCTC.cpp, which lets cuDNN normalize what it is given (CUDNN_LOSS_NORMALIZATION_SOFTMAX) and give
nothing where no alignment exists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

aten = torch.ops.aten
Tensor = torch.Tensor
MEAN, SUM = 1, 2
"""at::Reduction."""
LONGEST_TARGET = 255


def of_tensors(
    state: State, func: OpOverload, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, reduction: int = MEAN, zero_infinity: bool = False,
) -> object:  # fmt: skip
    """torch.nn.functional.ctc_loss with lengths in tensors; the host reads them."""
    if device_of(log_probs) < 0:
        return func.decompose(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    lengths = (input_lengths, target_lengths)
    for name, tensor in zip(("input", "target"), lengths, strict=True):
        if tensor.is_floating_point():
            raise RuntimeError(f"{name}_lengths must be integral")
    inputs, outputs = (tensor.to("cpu", torch.int64).reshape(-1).tolist() for tensor in lengths)
    short = all(tensor.dtype is torch.int32 for tensor in lengths)
    if short and _fits_cudnn(log_probs, targets, inputs, outputs, blank):
        loss = aten._cudnn_ctc_loss.Tensor(log_probs, targets, *lengths, blank, True, zero_infinity)[0]
        return _reduced(loss, target_lengths, reduction)
    return aten.ctc_loss.IntList(log_probs, targets, inputs, outputs, blank, reduction, zero_infinity)


def of_lists(
    state: State, func: OpOverload, log_probs: Tensor, targets: Tensor,
    input_lengths: list[int], target_lengths: list[int],
    blank: int = 0, reduction: int = MEAN, zero_infinity: bool = False,
) -> object:  # fmt: skip
    """The same with lengths in lists: cuDNN then wants targets on the host, and inputs of full length."""
    given = (log_probs, targets, input_lengths, target_lengths, blank)
    full = all(length == log_probs.shape[0] for length in input_lengths)
    if device_of(log_probs) < 0 or device_of(targets) >= 0 or not full or not _fits_cudnn(*given):
        return func.decompose(*given, reduction, zero_infinity)
    loss = aten._cudnn_ctc_loss.default(*given, True, zero_infinity)[0]
    return _reduced(loss, torch.tensor(target_lengths), reduction)


def _fits_cudnn(log_probs: Tensor, targets: Tensor, inputs: list[int], outputs: list[int], blank: int) -> bool:
    if not torch._C._get_cudnn_enabled() or blank != 0 or log_probs.dim() != 3 or targets.dim() != 1:
        return False
    if (log_probs.dtype, targets.dtype) != (torch.float32, torch.int32) or not targets.is_contiguous():
        return False
    return all(length <= min(LONGEST_TARGET, most) for length, most in zip(outputs, inputs, strict=False))


def _reduced(loss: Tensor, target_lengths: Tensor, reduction: int) -> Tensor:
    if reduction == MEAN:
        return (loss / target_lengths.to(loss.device, loss.dtype).clamp_min(1)).mean()
    return loss.sum() if reduction == SUM else loss


def values(dispatch: Dispatch, call: Call) -> object:
    """Losses of shape (batch,) and their gradient, of the shape of the log-probabilities."""
    return dispatch.compute(call.but(func=_computed))


def _computed(
    log_probs: Tensor, targets: Tensor, input_lengths: object, target_lengths: object, blank: int, deterministic: bool,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    normal = aten._log_softmax.default(log_probs, 2, False)
    lengths = [
        given.reshape(-1).tolist() if isinstance(given, Tensor) else given for given in (input_lengths, target_lengths)
    ]
    loss, alpha = aten._ctc_loss.default(normal, targets.long(), *lengths, blank, True)
    gradient = aten._ctc_loss_backward.default(
        torch.ones_like(loss), normal, targets.long(), *lengths, loss, alpha, blank, True
    )
    return torch.where(torch.isinf(loss), 0, loss), gradient


def handle(dispatch: Dispatch, call: Call) -> object:
    """aten::_cudnn_ctc_loss, for which the CPU has no kernel."""
    device = call.device = device_of(call.args[0])
    if device < 0:
        return call.func(*call.args, **call.kwargs)  # refuses that
    out = values(dispatch, call)
    dispatch.tag(out, device)
    dispatch.submit(call, out)
    return out


COMPOSITES: dict[object, Callable[..., object]] = {aten.ctc_loss.Tensor: of_tensors, aten.ctc_loss.IntList: of_lists}
"""By operator, for `composites.Composites`."""
HANDLERS = {"aten::_cudnn_ctc_loss": handle}
"""Operators with handlers of their own."""
VALUES = {"aten::_cudnn_ctc_loss": values}
"""What computes them in a replay."""
