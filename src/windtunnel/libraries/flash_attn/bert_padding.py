"""`flash_attn.bert_padding`: tokens without the padding, and back, by PyTorch's functions as in the library."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.nn import functional as F

from windtunnel.libraries import refuse

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.bert_padding", name)


class IndexFirstAxis(torch.autograd.Function):
    """Rows by their numbers."""

    @staticmethod
    def forward(ctx, input, indices):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(indices)
        ctx.rows, rest = input.shape[0], input.shape[1:]
        width = rest.numel()
        taken = torch.gather(input.flatten(1), 0, indices[:, None].expand(-1, width))
        return taken.reshape(-1, *rest)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (indices,) = ctx.saved_tensors
        flat = grad.flatten(1)
        out = torch.zeros([ctx.rows, flat.shape[1]], device=grad.device, dtype=grad.dtype)
        out.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return out.reshape(ctx.rows, *grad.shape[1:]), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Rows put at their numbers, with zeros elsewhere."""

    @staticmethod
    def forward(ctx, values, indices, first_axis_dim):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(indices)
        out = torch.zeros(first_axis_dim, *values.shape[1:], device=values.device, dtype=values.dtype)
        out[indices] = values
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(tokens that the mask has, their places, where each text begins, the longest text, tokens of each text)."""
    every = attention_mask + unused_mask if unused_mask is not None else attention_mask
    lengths = every.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(every.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    begins = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, begins, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] of tokens that `unpad_input` took out."""
    out: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return out.unflatten(0, (batch, seqlen))
