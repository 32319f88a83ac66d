"""CUDA's error codes, from the table that the C++ headers are made of."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from windtunnel.compiler.clang import INCLUDE

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_SYMBOL, NO_DEVICE, INVALID_DEVICE = 0, 1, 2, 13, 100, 101
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS, ASSERT, MISALIGNED, LAUNCH_FAILURE = 400, 600, 700, 710, 716, 719
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
OUT_OF_RESOURCES, COOPERATIVE_TOO_LARGE, CAPTURE_UNSUPPORTED, INVALID_FUNCTION = 701, 720, 900, 98
NOT_INITIALIZED, INVALID_CONTEXT, FILE_NOT_FOUND, NOT_FOUND, NOT_SUPPORTED, UNKNOWN = 3, 201, 301, 500, 801, 999
DRIVER_NAMES = {
    "MemoryAllocation": "OUT_OF_MEMORY", "InitializationError": "NOT_INITIALIZED", "CudartUnloading": "DEINITIALIZED",
    "InvalidResourceHandle": "INVALID_HANDLE", "NoKernelImageForDevice": "NO_BINARY_FOR_GPU",
    "InvalidKernelImage": "INVALID_IMAGE", "DeviceUninitialized": "INVALID_CONTEXT", "LaunchFailure": "LAUNCH_FAILED",
    "SymbolNotFound": "NOT_FOUND",
}  # fmt: skip
"""How the driver names what the runtime names otherwise."""


class Error(NamedTuple):
    """An error as CUDA names it and says it."""

    code: int
    name: str
    text: str

    @property
    def driver_name(self) -> str:
        """Its name in the driver's interface."""
        if not self.code:
            return "CUDA_SUCCESS"
        plain = self.name.removeprefix("cudaError")
        return "CUDA_ERROR_" + DRIVER_NAMES.get(plain, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).upper())


@cache
def table() -> dict[int, Error]:
    """The errors by their codes."""
    text = (INCLUDE / "windtunnel" / "errors.inc").read_text(encoding="utf-8")
    found = re.findall(r'X\((\d+), (\w+), "([^"]*)"\)', text)
    return {int(code): Error(int(code), name, said) for code, name, said in found}


@cache
def by_name() -> dict[str, Error]:
    """The errors by their names."""
    return {error.name: error for error in table().values()}
