"""`transformer_engine.pytorch.attention`: attention, with and without its products, and rotary positions."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from ...common.recipe import LIBRARY
from .dot_product_attention import DotProductAttention
from .multi_head_attention import MultiheadAttention
from .rope import RotaryPositionEmbedding, apply_rotary_pos_emb

__all__ = ["DotProductAttention", "MultiheadAttention", "RotaryPositionEmbedding", "apply_rotary_pos_emb"]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.attention", name)
