"""`transformer_engine.pytorch.fp8`: the former name of `quantization`."""

from .quantization import (
    FP8GlobalStateManager,
    check_fp8_support,
    check_mxfp8_support,
    fp8_autocast,
    fp8_model_init,
    get_default_fp8_recipe,
)

__all__ = [
    "FP8GlobalStateManager",
    "check_fp8_support",
    "check_mxfp8_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_fp8_recipe",
]
