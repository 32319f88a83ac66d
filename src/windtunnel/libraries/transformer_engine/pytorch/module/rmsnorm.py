"""`transformer_engine.pytorch.module.rmsnorm`."""

from .layernorm import RMSNorm

__all__ = ["RMSNorm"]
