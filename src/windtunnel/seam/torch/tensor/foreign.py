"""Kernels that the program brings itself: CUDA C++ is refused with a sentence that says why, Triton's are computed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

DIRECT_STORAGE = (
    "_gds_register_buffer", "_gds_deregister_buffer", "_gds_register_handle", "_gds_deregister_handle",
    "_gds_load_storage", "_gds_save_storage",
)  # fmt: skip
"""What the functions of torch.cuda.gds call."""
TRITON = (
    "triton.runtime.jit", "triton.runtime.interpreter", "triton.runtime.autotuner", "triton.runtime.driver",
    "triton.backends.nvidia.driver", "triton.testing",
)  # fmt: skip
"""Modules of Triton's in which something is replaced (`triton.surface`)."""


def patches(state: State) -> list[Patch]:
    """`torch.cuda.jiterator` and the like; others are patched when the program imports them (`MODULES`)."""
    found = [
        Patch(torch._C, "_cuda_customAllocator", _allocator),
        Patch(torch._C, "_cuda_changeCurrentAllocator", _allocator),
        *(Patch(torch._C, name, _direct_storage) for name in DIRECT_STORAGE if hasattr(torch._C, name)),
    ]
    if hasattr(torch.cuda, "green_contexts"):
        found.append(Patch(torch.cuda.green_contexts.GreenContext, "create", staticmethod(_green_context)))
    return found


def _direct_storage(*_: object, **__: object) -> NoReturn:
    raise UnsupportedError(
        "torch.cuda.gds moves bytes between a disk and a GPU by cuFile, which emulated GPUs do not have: read the file "
        "into host memory, and copy that"
    )


def _green_context(**_: object) -> NoReturn:
    raise UnsupportedError(
        "torch.cuda.green_contexts divides a GPU's multiprocessors by CUDA's driver, which emulated GPUs do not have: "
        "use streams of different priority"
    )


def _allocator(*_: object) -> NoReturn:
    raise UnsupportedError(
        "torch.cuda.memory.CUDAPluggableAllocator calls functions of CUDA's driver, which emulated GPUs do not have: "
        "leave PyTorch's own allocator in place"
    )


def _triton(name: str) -> Callable[[ModuleType], list[Patch]]:
    """Kernels of Triton's run on its interpreter; what that takes is imported when the program imports Triton."""

    def patches_of(module: ModuleType) -> list[Patch]:
        found: list[Patch] = importlib.import_module("windtunnel.seam.torch.triton.surface").PATCHES[name](module)
        return found

    return patches_of


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {name: _triton(name) for name in TRITON}
"""What is replaced in modules that the program may import later, by their names."""
