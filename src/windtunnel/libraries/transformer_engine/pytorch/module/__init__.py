"""`transformer_engine.pytorch.module`: layers with weights."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from ...common.recipe import LIBRARY
from .layernorm import LayerNorm, RMSNorm
from .layernorm_mlp import LayerNormMLP
from .linear import LayerNormLinear, Linear

__all__ = ["LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear", "RMSNorm"]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.module", name)
