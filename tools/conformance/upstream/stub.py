"""A pytest plugin that claims two GPUs and does nothing else: what tests pass on a mere claim.

PyTorch's test modules ask a GPU for its properties while they are imported, so the claim has some. Tests that pass with
it say nothing about an emulation; `tools/conformance` shows both counts.
"""

from __future__ import annotations

import torch


def claimed() -> bool:
    """Yes."""
    return True


def count() -> int:
    """Two."""
    return 2


class Properties:
    """Those of a V100, as far as test modules ask."""

    name = "Tesla V100-SXM2-16GB"
    major, minor = 7, 0
    total_memory = 16 << 30
    multi_processor_count = 80


def properties(device: object = None) -> Properties:
    """The same for both."""
    return Properties()


def capability(device: object = None) -> tuple[int, int]:
    """Volta's."""
    return 7, 0


def current_device() -> int:
    """The first."""
    return 0


torch.cuda.current_device = current_device
torch.cuda.get_device_properties = properties  # type: ignore[assignment]
torch.cuda.get_device_capability = capability
torch.cuda.is_available = claimed
torch.cuda.device_count = count
