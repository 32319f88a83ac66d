"""`flash_attn.ops.triton.cross_entropy`: a loss for each row in one kernel, which keeps the logits themselves."""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.described import kernel
from windtunnel.libraries import refuse, unanswered

LIBRARY = "flash_attn 2.8.3"
Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "flash_attn.ops.triton.cross_entropy", name)


SETTINGS = "float smoothing, float logit_scale, float lse_square_scale, int ignore_index"


@kernel(
    "flash_attn::cross_entropy",
    like="aten::_log_softmax",
    define=f"(Tensor logits, Tensor labels, {SETTINGS}) -> (Tensor, Tensor, Tensor)",
)
def _cross_entropy(logits, labels, smoothing, logit_scale, lse_square_scale, ignore_index):  # type: ignore[no-untyped-def]
    """(losses, squares of the logarithms, logarithms of sums) of rows, in float32."""
    if logits.is_meta:
        return tuple(torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(3))
    scaled = logits.float() * logit_scale
    lse = scaled.logsumexp(-1)
    ignored = labels == ignore_index
    chosen = scaled.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    losses = lse - (1.0 - smoothing) * chosen - smoothing * scaled.mean(-1)
    squares = lse_square_scale * lse.square()
    return (losses + squares).masked_fill(ignored, 0.0), squares.masked_fill(ignored, 0.0), lse


@kernel(
    "flash_attn::cross_entropy_bwd",
    like="aten::_log_softmax_backward_data",
    define=f"(Tensor(a!) out, Tensor grad, Tensor logits, Tensor lse, Tensor labels, {SETTINGS}) -> ()",
)
def _cross_entropy_bwd(  # type: ignore[no-untyped-def]
    out, grad, logits, lse, labels, smoothing, logit_scale, lse_square_scale, ignore_index
):
    if logits.is_meta:
        return
    scaled = logits.float() * logit_scale
    shares = (scaled - lse[:, None]).exp() * (1.0 + 2.0 * lse_square_scale * lse)[:, None]
    shares -= smoothing / logits.shape[-1]
    shares.scatter_add_(-1, labels.clamp(min=0)[:, None], torch.full_like(lse[:, None], smoothing - 1.0))
    kept = (labels != ignore_index)[:, None]
    out.copy_((shares * grad.float()[:, None] * logit_scale).masked_fill(~kept, 0.0))


class CrossEntropyLoss(torch.autograd.Function):
    """Losses and the squares' part of them; the gradient may take the logits' place."""

    @staticmethod
    def forward(ctx, logits, labels, smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward):  # type: ignore[no-untyped-def]
        settings = smoothing, logit_scale, lse_square_scale, ignore_index
        losses, squares, lse = torch.ops.flash_attn.cross_entropy(logits, labels, *settings)
        ctx.save_for_backward(logits, lse, labels)
        ctx.settings, ctx.inplace_backward = settings, inplace_backward
        ctx.mark_non_differentiable(squares)
        return losses, squares

    @staticmethod
    def backward(ctx, grad, of_squares):  # type: ignore[no-untyped-def]
        logits, lse, labels = ctx.saved_tensors
        out = logits if ctx.inplace_backward else torch.empty_like(logits)
        torch.ops.flash_attn.cross_entropy_bwd(out, grad, logits, lse, labels, *ctx.settings)
        return out, *[None] * 6


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: object = None,
) -> tuple[Tensor, Tensor]:
    """(losses [rows], squares [rows]) of logits [rows, classes]."""
    if process_group is not None:
        unanswered(LIBRARY, "cross_entropy_loss with process_group", "gather the logits, or leave them whole")
    if precomputed_lse is not None:
        unanswered(LIBRARY, "cross_entropy_loss with precomputed_lse")
    told = label_smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward
    losses, squares = CrossEntropyLoss.apply(logits, labels, *told)
    return losses, squares
