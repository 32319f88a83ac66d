"""Symmetric memory, through which ranks read one another's GPUs: refused, since no rank can address another one's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch

REFUSAL = (
    "windtunnel has no symmetric memory (torch.distributed._symmetric_memory): the memory of a rank's emulated GPUs "
    "cannot be addressed by another rank; use the collectives of torch.distributed"
)


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise UnsupportedError(REFUSAL)


def _refusing(module: ModuleType) -> list[Patch]:
    return [Patch(module, name, _refuse) for name in ("empty", "rendezvous") if hasattr(module, name)]


def _without_multicast(device_type: object, device_index: int) -> bool:
    """No: nor is there a driver to ask, which PyTorch does here."""
    return False


def _asking(module: ModuleType) -> list[Patch]:
    memory = getattr(torch._C._distributed_c10d, "_SymmetricMemory", None)
    name = "has_multicast_support"
    return [Patch(memory, name, staticmethod(_without_multicast))] if hasattr(memory, name) else []


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "torch.distributed._symmetric_memory": _refusing,
    "torch.distributed": _asking,
}
"""What is replaced when the program imports it, or has."""
