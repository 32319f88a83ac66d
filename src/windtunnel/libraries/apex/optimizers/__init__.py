"""`apex.optimizers`: optimizers that update all parameters in a few kernels."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from .fused_adam import FusedAdam

__all__ = ["FusedAdam"]


def __getattr__(name: str) -> NoReturn:
    refuse("apex 0.1", "apex.optimizers", name)
