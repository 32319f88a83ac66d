"""PyTorch's own constructors while an operator runs, whatever the program has put in their place.

nanotron, accelerate and DeepSpeed replace `torch.empty` and its kin, so that modules are made on a device and in a
dtype of theirs. A GPU's kernels do not see that; PyTorch's meta kernels and ours, which are Python, would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from windtunnel.seam.patching import Patch, Patches

OWN = torch._C._VariableFunctionsClass  # type: ignore[attr-defined]
"""Where C++ finds them, and programs put nothing."""
NAMES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "ones", "ones_like", "rand", "randn",
    "scalar_tensor", "tensor", "zeros", "zeros_like",
)  # fmt: skip


@contextmanager
def own() -> Iterator[None]:
    """PyTorch's own inside it."""
    patches = Patches()
    patches.apply(
        Patch(torch, name, getattr(OWN, name)) for name in NAMES if vars(torch)[name] is not getattr(OWN, name)
    )
    try:
        yield
    finally:
        patches.restore()
