"""`transformer_engine.pytorch.module.layernorm_linear`."""

from .linear import LayerNormLinear

__all__ = ["LayerNormLinear"]
