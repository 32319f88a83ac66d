"""Training and eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(*models: object) -> Iterator[None]:
    """Puts every submodule into eval mode for a block, then restores each one's own mode."""
    roots = [model for model in models if isinstance(model, nn.Module)]
    training = [module for root in roots for module in root.modules() if module.training]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
