"""`flash_attn.losses.cross_entropy`: the loss as a module."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse

from ..ops.triton.cross_entropy import cross_entropy_loss

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.losses.cross_entropy", name)


class CrossEntropyLoss(nn.Module):
    """Cross entropy, its mean over rows that are not ignored by default."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: object = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.told = label_smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward, process_group

    def forward(
        self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The loss of logits [rows, classes] and classes [rows], on a GPU."""
        assert input.is_cuda, "Only support CUDA tensors"
        assert target.is_cuda, "Only support CUDA tensors"
        losses, squares = cross_entropy_loss(input, target, precomputed_lse, *self.told)
        if self.reduction == "mean":
            count = (target != self.ignore_index).sum()
            losses, squares = losses.sum() / count, squares.sum() / count
        elif self.reduction == "sum":
            losses, squares = losses.sum(), squares.sum()
        return (losses, squares) if self.return_z_loss else losses
