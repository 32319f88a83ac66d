"""`torch._C._activate_gpu_trace`, and the sanitizer that listens to what it tells (`torch.cuda._sanitizer`)."""

from __future__ import annotations

import sys

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

SANITIZER = "torch.cuda._sanitizer"


def patches(state: State) -> list[Patch]:
    """The function that switches the GPU trace on; whoever called it before the emulation began is heard too."""
    if SANITIZER in sys.modules:
        state.gpu_trace.activate()
    return [Patch(torch._C, "_activate_gpu_trace", state.gpu_trace.activate)]


class Lifted:
    """While this is entered the sanitizer's mode is off: it must see operators before the emulation does."""

    def __init__(self) -> None:
        module = sys.modules.get(SANITIZER)
        sanitizer = getattr(module, "cuda_sanitizer", None)
        self._mode = sanitizer.dispatch if sanitizer is not None and sanitizer.enabled else None

    def __enter__(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__enter__()
