"""The operators that torchvision's Python part names when it is imported, declared without an implementation.

torchvision's builds do not load beside a CPU build of torch; programs that need only what it has in Python run so.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")


def declare_operators() -> None:
    """Declare them, once in a process."""
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
