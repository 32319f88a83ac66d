"""Numba's CUDA kernels: LLVM compiles them to PTX in libNVVM's place, and the emulated driver launches them.

Numba computes types and arguments as ever; what is replaced is how it finds the driver and the compiler.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Protocol

from windtunnel.compiler import clang, nvvm
from windtunnel.compiler.kernels import compile_text
from windtunnel.seam import foreign_kernels
from windtunnel.seam.cuda_runtime.names import tell_parameters
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.extensions.driver_library import DriverLibrary

LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-v16:16:16-v32:32:32-"
    "v64:64:64-v128:128:128-n16:32:64"
)
CAPABILITIES = tuple(divmod(both, 10) for both in (50, 52, 53, 60, 61, 62, 70, 75, 80, 86, 87, 89, 90, 100, 120))
"""What LLVM compiles for; Numba takes the nearest below the GPU's."""
IR_VERSION = (2, 0, 3, 1)
ARCHITECTURE = re.compile(r"(\d+)(\d)[a-z]?$")


class Nvvm:
    """What Numba asks of libNVVM."""

    data_layout = LAYOUT
    supported_ccs = CAPABILITIES

    def get_ir_version(self) -> tuple[int, int, int, int]:
        """The versions of NVVM IR and of its debug information."""
        return IR_VERSION

    def get_version(self) -> tuple[int, int]:
        """libNVVM's own."""
        return IR_VERSION[:2]


def _compiled(module: ModuleType) -> Callable[..., bytes]:
    """`compile_ir`: what Numba has of a kernel and of the functions that it calls, as PTX."""

    def compile_ir(llvmir: str | Sequence[str], **options: object) -> bytes:
        texts = [llvmir] if isinstance(llvmir, str) else list(llvmir)
        found = ARCHITECTURE.search(str(options.get("arch", "compute_70")))
        capability = (int(found[1]), int(found[2])) if found else (7, 0)
        replaced = [module.llvm_replace(text) for text in texts]
        if options.get("fastmath"):
            options = {"ftz": True, "fma": True, **options}
        return nvvm.to_ptx(
            replaced, capability, fused=bool(options.get("fma", True)), flushed=bool(options.get("ftz")),
            level=3 if options.get("opt", 3) else 0,
        ).encode()  # fmt: skip

    return compile_ir


def _from_source(src: str | bytes, name: str, cc: tuple[int, int]) -> tuple[str, str]:
    """`nvrtc.compile`: PTX of CUDA C++ that a kernel is linked with, and what the compiler said.

    Raises:
        CompileError: clang does not take it.
    """
    return compile_text(src.decode() if isinstance(src, bytes) else src, cc), ""


def _with_lines(jit: Callable[..., object]) -> Callable[..., object]:
    """`cuda.jit` with the lines of the program, which findings name; functions without a file have none."""

    def lines(options: dict[str, object], function: FunctionType) -> dict[str, object]:
        if options.get("debug") or "lineinfo" in options or not os.path.isfile(function.__code__.co_filename):
            return options
        return {**options, "lineinfo": True}

    def decorated(*given: object, **options: object) -> object:
        if given and isinstance(given[0], FunctionType):
            return jit(*given, **lines(options, given[0]))

        def decorator(function: object) -> object:
            made = lines(options, function) if isinstance(function, FunctionType) else options
            return jit(*given, **made)(function)  # type: ignore[operator]  # Numba's own decorator

        return decorator

    return decorated


class NumbaTarget(Protocol):
    """What Numba knows of a target."""

    data_model_manager: object


class NumbaDispatcher(Protocol):
    """`CUDADispatcher`: a kernel before its types are known."""

    py_func: FunctionType
    targetctx: NumbaTarget


class NumbaKernel(Protocol):
    """A kernel of known types."""

    argument_types: tuple[object, ...]
    entry_name: str


def _with_names(module: ModuleType) -> Callable[..., object]:
    """`CUDADispatcher.compile`: it also tells what the kernel's parameters are called; an array is several of them."""
    compile_kernel: Callable[[NumbaDispatcher, object], NumbaKernel] = module.CUDADispatcher.compile
    packer = importlib.import_module("numba.core.datamodel").ArgPacker

    def compiled(self: NumbaDispatcher, sig: object) -> NumbaKernel:
        kernel = compile_kernel(self, sig)
        manager = self.targetctx.data_model_manager
        arguments = zip(inspect.signature(self.py_func).parameters, kernel.argument_types, strict=False)
        names = (name for name, kind in arguments for _ in packer(manager, [kind]).argument_types)
        tell_parameters(kernel.entry_name, names)
        return kernel

    return compiled


def _numba(module: ModuleType) -> list[Patch]:
    """The driver and the compiler; without clang and llvmlite a refusal. Numba's simulator is left alone."""
    if "simulator" in str(getattr(module.jit, "__module__", "")) or not clang.available():
        return foreign_kernels.numba(module)
    name = f"{module.__name__}.cudadrv"
    driver, compiler, source = (importlib.import_module(f"{name}.{part}") for part in ("driver", "nvvm", "nvrtc"))
    dispatcher = importlib.import_module(f"{module.__name__}.dispatcher")
    jit = _with_lines(module.jit)
    return [
        Patch(driver.driver, "lib", DriverLibrary()),
        Patch(driver.driver, "is_initialized", False),
        Patch(driver.driver, "initialization_error", None),
        Patch(compiler, "NVVM", Nvvm),
        Patch(compiler, "is_available", lambda: True),
        Patch(source, "compile", _from_source),
        Patch(compiler, "compile_ir", _compiled(compiler)),
        Patch(module, "jit", jit),
        Patch(dispatcher.CUDADispatcher, "compile", _with_names(dispatcher)),
    ]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {"numba.cuda": _numba}
"""What is replaced once it is imported."""
