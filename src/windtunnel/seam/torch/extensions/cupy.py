"""CuPy's RawKernel and RawModule, by the addresses of PyTorch's tensors. Its arrays need NVIDIA's own driver."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
import torch

from windtunnel.compiler import clang
from windtunnel.errors import UnsupportedError
from windtunnel.seam import foreign_kernels
from windtunnel.seam.cuda_runtime import errors, limits
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.modules import Binary, KernelFunction
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.extensions.libraries import current, process_of
from windtunnel.seam.torch.extensions.single import compiled, laid_out
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.state.state import stream_of

SCALARS = {bool: "<?", int: "<q", float: "<d"}
ANSWERED = ("RawKernel", "RawModule")


class HasHandle(Protocol):
    """A stream of CuPy's, or what programs put in its place."""

    ptr: int


def _packed(value: object) -> bytes:
    """An argument as CuPy passes it: numbers of Python in 64 bits, those of NumPy as they are."""
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, complex):
        return struct.pack("<2d", value.real, value.imag)
    kind = SCALARS.get(type(value))
    if kind is None:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, int) and value >= 1 << 63:
        kind = "<Q"
    return struct.pack(kind, value)


class RawKernel:
    """A kernel of a source."""

    def __init__(self, code: str, name: str, options: Sequence[str] = (), *_: object, **__: object) -> None:
        self.code, self.name, self.options = code, name, tuple(options)
        self.max_dynamic_shared_size_bytes = 48 << 10
        self._made: KernelFunction | None = None

    def compile(self, log_stream: object = None) -> None:
        """Compile it now, not when it is first launched."""
        state = current()
        assert state is not None
        self._made = self._made or compiled(state, self.code, self.name, self.options)

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[object], *, shared_mem: int = 0,
        stream: HasHandle | None = None,
    ) -> None:  # fmt: skip
        """Launch it on the current stream of PyTorch's, or the one given."""
        state = current()
        assert state is not None
        self.compile()
        assert self._made is not None
        kernel, process = self._made.kernel, process_of(state)
        found = stream_of(state, torch.cuda.current_stream()) if stream is None else process.stream(stream.ptr)
        sizes = [tuple([*map(int, given), 1, 1, 1][:3]) for given in (grid, block)]
        shape = LaunchShape(sizes[0], sizes[1], shared_mem)  # type: ignore[arg-type]
        gpu = state.device(found.device).gpu
        refused = limits.refusal(
            shape, gpu, kernel.max_threads, kernel.shared_bytes, self.max_dynamic_shared_size_bytes
        )
        if refused:
            error = errors.table()[refused]
            raise cuda_error(error.text, error.name, blocking=state.machine.blocking)
        process.launch(self._made, shape, laid_out(kernel, [_packed(value) for value in args]), found)


class RawModule:
    """Kernels of one source, or of a file of PTX."""

    def __init__(
        self, *, code: str | None = None, path: str | None = None, options: Sequence[str] = (), **_: object
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        self.code, self.options = code, tuple(options)
        self._binary: Binary | None = None
        if path is not None:
            text = Path(path).read_bytes()
            if not re.search(rb"^\s*\.version\s", text, re.M):
                raise UnsupportedError(f"{path} has machine code without PTX, which runs on a GPU alone")
            self._binary = Binary.of(text.decode(), path)

    def get_function(self, name: str) -> RawKernel:
        """A kernel by its name; instances of templates by their expressions."""
        kernel = RawKernel(self.code or "", name, self.options)
        if self._binary is not None:
            kernel._made = KernelFunction(self._binary, name)
        return kernel


def _cupy(module: ModuleType) -> list[Patch]:
    found = foreign_kernels.cupy(module)
    if not clang.available():
        return found
    kept = [patch for patch in found if patch.owner is not module or patch.name not in ANSWERED]
    own = {"RawKernel": RawKernel, "RawModule": RawModule}
    return [*kept, *(Patch(module, name, own[name]) for name in ANSWERED if hasattr(module, name))]


MODULES = {"cupy": _cupy}
"""What is replaced once it is imported."""
