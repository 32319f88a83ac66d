"""The kernels and variables that libraries of the program registered, by the host's addresses of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from windtunnel import ptx
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime.binaries import ptx_at
from windtunnel.seam.cuda_runtime.names import found_as


class Binary:
    """One registered binary; its PTX is read when a kernel of it is first launched."""

    def __init__(self, address: int, library: str, cache: Path | None) -> None:
        self.address = address
        self.library = library
        self.cache = cache
        self._module: ptx.Module | ptx.PartedModule | None = None

    @classmethod
    def of(cls, text: str, source: str, cache: Path | None = None) -> Binary:
        """One of PTX that is there already."""
        made = cls(0, source, cache)
        made._module = ptx.load(text, cache)
        return made

    @property
    def module(self) -> ptx.Module | ptx.PartedModule:
        """The loaded module."""
        if self._module is None:
            self._module = ptx.load(ptx_at(self.address, self.library), self.cache)
        return self._module


class KernelFunction(NamedTuple):
    """A kernel or variable as host code knows it."""

    binary: Binary
    name: str

    @property
    def kernel(self) -> ptx.Kernel:
        """The kernel.

        Raises:
            UnsupportedError: the PTX has none of that name.
        """
        kernels = self.binary.module.kernels
        name = self.name if self.name in kernels else found_as(self.name, kernels)
        if name is None:
            raise UnsupportedError(
                f"the PTX of {self.binary.library} has no kernel {self.name!r}, or several of that name in "
                "namespaces of a file's own"
            )
        return kernels[name]

    @property
    def variable(self) -> ptx.Variable | None:
        """The variable, if it has one of that name."""
        variables = self.binary.module.variables
        name = self.name if self.name in variables else found_as(self.name, variables)
        return None if name is None else variables[name]


class Modules:
    """All that was registered in this process."""

    def __init__(self, cache: Callable[[], Path | None] = lambda: None) -> None:
        self.cache = cache
        self.binaries: dict[int, Binary] = {}
        self.functions: dict[int, KernelFunction] = {}
        self.variables: dict[int, KernelFunction] = {}

    def register_binary(self, data: int, library: int) -> int:
        """A library is loaded that has device code."""
        name = Path(os.fsdecode(ctypes.string_at(library))).name
        self.binaries[data] = Binary(data, name or "a library", self.cache())
        return 0

    def register_function(self, binary: int, host: int, name: int) -> int:
        """A kernel of it."""
        self.functions[host] = KernelFunction(self.binaries[binary], ctypes.string_at(name).decode())
        return 0

    def register_variable(self, binary: int, host: int, name: int, size: int, constant: int) -> int:
        """A variable of it."""
        self.variables[host] = KernelFunction(self.binaries[binary], ctypes.string_at(name).decode())
        return 0

    def register_managed(self, binary: int, host: int, name: int, size: int) -> int:
        """A variable that the host reads and writes as well: where it lies."""
        self.variables[host] = known = KernelFunction(self.binaries[binary], ctypes.string_at(name).decode())
        if known.variable is None:
            raise UnsupportedError(f"the PTX of {known.binary.library} has no variable {known.name!r}")
        return known.variable.address

    def variable(self, host: int) -> ptx.Variable | None:
        """The variable whose shadow on the host lies there."""
        found = self.variables.get(host)
        return None if found is None else found.variable
