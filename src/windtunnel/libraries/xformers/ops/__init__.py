"""`xformers.ops`: attention."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from .fmha import memory_efficient_attention
from .fmha.attn_bias import AttentionBias, LowerTriangularMask

__all__ = ["AttentionBias", "LowerTriangularMask", "fmha", "memory_efficient_attention"]


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops", name)
