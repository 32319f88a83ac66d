"""Libraries that compile CUDA themselves, CuPy and Numba: refused with a sentence, whatever framework is emulated.

Importing one is no use of a GPU; what makes its arrays or kernels is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch

WHY = "an emulated GPU has no processor to run it on"
INSTEAD = "write it with PyTorch's operators, or run this part on a real GPU"

CUPY_WHY = "CuPy's arrays are made by a copy of NVIDIA's runtime library in its wheel, which needs its driver"
CUPY_INSTEAD = (
    "give its RawKernel or RawModule the addresses of PyTorch's tensors, write it with PyTorch's operators, or run "
    "this part on a real GPU"
)
CUPY = {
    "": (
        "ElementwiseKernel", "RawKernel", "RawModule", "ReductionKernel", "arange", "array", "asarray", "empty",
        "empty_like", "eye", "from_dlpack", "full", "fuse", "linspace", "ones", "ones_like", "zeros", "zeros_like",
    ),
    "random": ("default_rng", "normal", "rand", "randint", "randn", "random", "seed", "uniform"),
    "cuda": ("Device", "Event", "ExternalStream", "MemoryPool", "Stream", "alloc"),
    "cuda.runtime": ("deviceSynchronize", "getDevice", "getDeviceCount", "getDeviceProperties", "setDevice"),
}  # fmt: skip
"""Where a program that uses CuPy meets it first, by submodule."""
NUMBA = {
    "": (
        "as_cuda_array", "current_context", "device_array", "device_array_like", "jit", "managed_array", "mapped_array",
        "pinned_array", "select_device", "stream", "synchronize", "to_device",
    )
}  # fmt: skip
"""The same of `numba.cuda`."""


def _refusing(module: ModuleType, names: Mapping[str, Sequence[str]], why: str, instead: str) -> list[Patch]:
    def refusal(name: str) -> Callable[..., object]:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise UnsupportedError(f"{name}: {why}: {instead}")

        return refuse

    found = []
    for path, some in names.items():
        owner: object = module
        for part in path.split(".") if path else ():
            owner = getattr(owner, part, None)
        full = f"{module.__name__}.{path}".rstrip(".")
        found += [Patch(owner, name, refusal(f"{full}.{name}")) for name in some if hasattr(owner, name)]
    return found


def cupy(module: ModuleType) -> list[Patch]:
    """CuPy's arrays; `extensions/cupy.py` answers its raw kernels over PyTorch's tensors."""
    return _refusing(module, CUPY, CUPY_WHY, CUPY_INSTEAD)


def numba(module: ModuleType) -> list[Patch]:
    """Numba's CUDA kernels; its simulator (NUMBA_ENABLE_CUDASIM=1) computes on host arrays as ever."""
    if "simulator" in str(getattr(getattr(module, "jit", None), "__module__", "")):
        return []
    return _refusing(module, NUMBA, f"Numba compiles CUDA kernels to machine code of a GPU, and {WHY}", INSTEAD)


def cuda_python(module: ModuleType) -> list[Patch]:
    """cuda-python without a compiler: nothing is replaced, and its functions say that there is no driver."""
    return []


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "cupy": cupy,
    "numba.cuda": numba,
    "cuda.bindings": cuda_python,
}
"""What is replaced in them when the program imports them."""
