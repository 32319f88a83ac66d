"""A pytest plugin that claims two GPUs and does nothing else: what tests pass on a mere claim.

Tests that pass with it say nothing about an emulation; `tools/conformance.py` shows both counts.
"""

from __future__ import annotations

import torch


def claimed() -> bool:
    """Yes."""
    return True


def count() -> int:
    """Two."""
    return 2


torch.cuda.is_available = claimed
torch.cuda.device_count = count
