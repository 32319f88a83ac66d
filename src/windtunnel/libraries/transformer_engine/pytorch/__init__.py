"""`transformer_engine.pytorch`: what programs import."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from ..common.recipe import LIBRARY
from .attention import DotProductAttention, MultiheadAttention, RotaryPositionEmbedding
from .module import LayerNorm, LayerNormLinear, LayerNormMLP, Linear, RMSNorm
from .quantization import (
    autocast,
    fp8_autocast,
    fp8_model_init,
    get_default_recipe,
    is_fp8_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)
from .transformer import TransformerLayer

__all__ = [
    "DotProductAttention",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_recipe",
    "is_fp8_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch", name)
