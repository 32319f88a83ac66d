"""`xformers.ops`: attention, and what goes with it in transformers."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from . import fmha
from .fmha import (
    AttentionBias,
    AttentionOp,
    LowerTriangularMask,
    MemoryEfficientAttentionCutlassOp,
    MemoryEfficientAttentionFlashAttentionOp,
    memory_efficient_attention,
    memory_efficient_attention_forward,
    memory_efficient_attention_forward_requires_grad,
)
from .indexing import index_select_cat, scaled_index_add
from .rmsnorm import RMSNorm
from .swiglu_op import SwiGLU, swiglu
from .unbind import stack_or_none, unbind

AttentionMask = AttentionBias
__all__ = [
    "AttentionBias", "AttentionMask", "AttentionOp", "LowerTriangularMask", "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp", "RMSNorm", "SwiGLU", "fmha", "index_select_cat",
    "memory_efficient_attention", "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad", "scaled_index_add", "stack_or_none", "swiglu", "unbind",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops", name)
