"""`transformer_engine.pytorch.attention.rope`: rotary positions."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.described import kernel
from windtunnel.libraries import refuse, unanswered

from ...common.recipe import LIBRARY

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.attention.rope", name)


class RotaryPositionEmbedding(nn.Module):
    """The angles of positions, [tokens, 1, 1, width]."""

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        if seq_len_interpolation_factor is not None and pretrained_max_position_embeddings is not None:
            unanswered(LIBRARY, "rotary positions that are interpolated")
        dim = int(dim * rotary_percent) if rotary_percent < 1.0 else dim
        places = torch.arange(0, dim, 2, dtype=torch.float32, device="cuda")
        self.interleaved, self.rotary_base = interleaved, rotary_base
        self.register_buffer("inv_freq", 1.0 / (rotary_base ** (places / dim)))

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """The angles of so many positions from `offset` on."""
        frequencies: Tensor = self.inv_freq  # type: ignore[assignment]
        with torch.autocast("cuda", enabled=False):
            positions = torch.arange(max_seq_len, device=frequencies.device, dtype=frequencies.dtype) + offset
            angles = torch.outer(positions, frequencies)
        whole = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), -1)
        return whole[:, None, None]


@kernel(
    "transformer_engine::rope",
    like="aten::mul",
    define="(Tensor t, Tensor angles, bool batch_first, bool interleaved) -> Tensor",
)
def _rope(t, angles, batch_first, interleaved):  # type: ignore[no-untyped-def]
    width, tokens = angles.shape[-1], t.shape[1 if batch_first else 0]
    turned, rest = t[..., :width].float(), t[..., width:]
    angles = angles[:tokens].float()
    angles = angles.transpose(0, 1) if batch_first else angles
    if interleaved:
        other = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        other = torch.cat((-second, first), -1)
    return torch.cat(((turned * angles.cos() + other * angles.sin()).to(t.dtype), rest), -1)


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Turn pairs of numbers by their position's angle."""
    if tensor_format == "thd" or start_positions is not None or cp_size > 1:
        unanswered(LIBRARY, "rotary positions of packed texts, of a cache or over several ranks")
    tokens = t.shape[1 if tensor_format == "bshd" else 0]
    assert tokens <= freqs.shape[0], f"Rotary Embeddings only supported up to {freqs.shape[0]} sequence length!"
    turned: Tensor = torch.ops.transformer_engine.rope(t, freqs.detach(), tensor_format == "bshd", interleaved)
    return turned
