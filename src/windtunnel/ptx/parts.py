"""A module whose kernels are compiled one by one (`compiler/parts.py`): it has a module for each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from windtunnel.compiler import parts
from windtunnel.compiler.clang import required
from windtunnel.ptx.engine import cache_folder
from windtunnel.ptx.module import Kernel, Module, Variable

VARIABLES = ""


class PartedModule:
    """What the kernels of one module have in common: its variables."""

    def __init__(self, text: str, cache: Path | None) -> None:
        self._parts = parts.read(text)
        self._cache = cache
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:40]
        self.kernels: Mapping[str, Kernel] = _Kernels(self._parts.kernels, self)

    @cached_property
    def _own(self) -> Module:
        return Module(self._ptx(VARIABLES), self._cache)

    @property
    def variables(self) -> dict[str, Variable]:
        """Those in global and constant memory."""
        return self._own.variables

    def compiled(self, name: str) -> Kernel:
        """One of its kernels."""
        return Module(self._ptx(name), self._cache, self.variables).kernels[name]

    def _ptx(self, name: str) -> str:
        """PTX of a kernel, or of the variables alone."""
        key = hashlib.sha256(f"{self.digest} {name}".encode()).hexdigest()[:24]
        kept = cache_folder(self._cache) / f"{key}.ptx"
        if not kept.exists():
            clang, made = required(), kept.with_name(f"{key}-{os.getpid()}.ptx")
            if name == VARIABLES:
                text = parts.optimized(self._parts.ir.variables(), self._parts.target, clang, made, "-O0")
            else:
                text = parts.ptx(self._parts.kernel(name), clang, made)
            made.write_text(text, encoding="utf-8")
            made.with_suffix(".ll").unlink()
            os.replace(made, kept)
        return kept.read_text(encoding="utf-8")


class _Kernels(Mapping[str, Kernel]):
    def __init__(self, names: tuple[str, ...], module: PartedModule) -> None:
        self._names, self._module = dict.fromkeys(names), module
        self._compiled: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._compiled:
            self._compiled[name] = self._module.compiled(name)
        return self._compiled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load(text: str, cache: Path | None = None) -> Module | PartedModule:
    """A module of PTX text, or of many kernels. What is not supported is refused by name and line when a kernel that
    contains it is launched."""
    return PartedModule(text, cache) if text.startswith(parts.MARK) else Module(text, cache)
