"""`xformers.ops.fmha.flash`: this kernel, to be given as `op`."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from ._operators import Flash as FwOp

__all__ = ["BwOp", "FwOp"]


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.ops.fmha.flash", name)


class BwOp:
    """Its gradients, which are always those of the forward pass's kernel here."""
