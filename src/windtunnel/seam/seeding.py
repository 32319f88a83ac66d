"""The generators that a program draws from without saying so."""

from __future__ import annotations

import random
import sys


def seed_all(seed: int | None) -> None:
    """Seed Python's generator, and those of NumPy and PyTorch where they are imported; None leaves them alone."""
    if seed is None:
        return
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
