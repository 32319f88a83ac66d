"""Kernels that the program brings itself, as CUDA C++ or Triton: refused, each with a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn, Protocol

import torch

from understudy.errors import UnsupportedError
from understudy.seam.patching import Patch
from understudy.seam.torch.state.state import State

WHY = "an emulated GPU has no processor to run it on"
INSTEAD = "write it with PyTorch's operators, or run this part on a real GPU"


def patches(state: State) -> list[Patch]:
    """`torch.cuda.jiterator` and the like; others are patched when the program imports them (`MODULES`)."""
    found = [
        Patch(torch._C, "_cuda_jiterator_compile_and_launch_kernel", _jiterator),
        Patch(torch._C, "_cuda_customAllocator", _allocator),
        Patch(torch._C, "_cuda_changeCurrentAllocator", _allocator),
    ]
    return [*found, Patch(torch.cuda, "_compile_kernel", _kernel)] if hasattr(torch.cuda, "_compile_kernel") else found


def _allocator(*_: object) -> NoReturn:
    raise UnsupportedError(
        "torch.cuda.memory.CUDAPluggableAllocator calls functions of CUDA's driver, which emulated GPUs do not have: "
        "leave PyTorch's own allocator in place"
    )


def _kernel(kernel_source: str, kernel_name: str, *_: object, **__: object) -> NoReturn:
    raise UnsupportedError(f"torch.cuda._compile_kernel compiles {kernel_name!r} as CUDA C++, and {WHY}: {INSTEAD}")


def _jiterator(code: str, name: str, *args: object) -> NoReturn:
    raise UnsupportedError(f"torch.cuda.jiterator compiles {name!r} as CUDA C++, and {WHY}: {INSTEAD}")


def _extension(module: ModuleType) -> list[Patch]:
    """`load` and `load_inline`: sources for the CPU are compiled as ever, CUDA sources are not."""
    stock: Callable[..., object] = module._jit_compile
    is_cuda: Callable[[str], bool] = module._is_cuda_file

    def compile(name: str, sources: str | Sequence[str], *args: object, **kwargs: object) -> object:
        paths = [sources] if isinstance(sources, str) else list(sources)
        found = [path for path in paths if is_cuda(path)]
        if found:
            raise UnsupportedError(
                f"torch.utils.cpp_extension would compile CUDA sources for {name!r} ({', '.join(found)}), and "
                f"{WHY}: give the extension sources for the CPU, {INSTEAD}"
            )
        return stock(name, sources, *args, **kwargs)

    return [Patch(module, "_jit_compile", compile)]


class _JITFunction(Protocol):
    """A kernel of Triton's."""

    fn: Callable[..., object]


def _triton(module: ModuleType) -> list[Patch]:
    def run(self: _JITFunction, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(
            f"{self.fn.__name__!r} is a Triton kernel, compiled for the GPU, and {WHY}: set TRITON_INTERPRET=1, with "
            f"which Triton computes it on the CPU, {INSTEAD}"
        )

    return [Patch(module.JITFunction, "run", run)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "torch.utils.cpp_extension": _extension,
    "triton.runtime.jit": _triton,
}
"""What is replaced in modules that the program may import later, by their names."""
