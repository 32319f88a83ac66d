"""`xformers.ops.fmha.attn_bias`: which keys a query sees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NoReturn

import torch

from windtunnel.libraries import refuse

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops.fmha.attn_bias", name)


class AttentionBias:
    """What is added to the scores."""


class LowerTriangularMask(AttentionBias):
    """A query sees the keys before it, counted from the first of each."""

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        self.device = device


class LowerTriangularFromBottomRightMask(AttentionBias):
    """The same, counted from the last of each."""


class BlockDiagonalMask(AttentionBias):
    """Texts one behind another, of which each sees itself."""

    causal = False

    def __init__(self, q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
        self.q_seqlen, self.kv_seqlen = list(q_seqlen), list(kv_seqlen)

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> BlockDiagonalMask:
        """Texts of these lengths, and of keys."""
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    def begins(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each text begins, of queries and of keys."""
        first, second = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
            for lengths in (self.q_seqlen, self.kv_seqlen)
        )
        return first, second

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same where a query sees the keys before it."""
        return BlockDiagonalCausalMask(self.q_seqlen, self.kv_seqlen)

    def split(self, tensor: Tensor) -> Sequence[Tensor]:
        """The texts of a tensor [1, all tokens, ...]."""
        return tensor.split(self.q_seqlen, dim=1)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """The same where a query sees the keys before it, counted from the first of its text."""

    causal = True
