"""Packages with CUDA sources: `setup.py` with `CUDAExtension` and `BuildExtension`, also where pip runs it."""

from __future__ import annotations

import os
import shutil
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from windtunnel.compiler import clang
from windtunnel.compiler.extensions import CUDA_LIBRARIES, CUDA_SUFFIXES, Sources, cache_folder
from windtunnel.seam.foreign_kernels import INSTEAD, WHY
from windtunnel.seam.patching import Patch

Options = Sequence[str] | dict[str, list[str]]
NVCC = """#!/bin/sh
case "$*" in
*-V*|*--version*)
  echo "nvcc: NVIDIA (R) Cuda compiler driver"
  echo "Cuda compilation tools, release {version}, V{version}.0"
  echo "emulated by windtunnel, which compiles with clang"
  ;;
*)
  echo "nvcc: windtunnel has none to call: build with torch.utils.cpp_extension, which it answers" >&2
  exit 1
  ;;
esac
"""


class Extension(Protocol):
    """A `setuptools.Extension`."""

    name: str
    sources: list[str]
    include_dirs: list[str]
    define_macros: list[tuple[str, str | None]]
    undef_macros: list[str]
    library_dirs: list[str]
    libraries: list[str]
    runtime_library_dirs: list[str]
    extra_objects: list[str]
    extra_compile_args: Options
    extra_link_args: list[str]


class Command(Protocol):
    """Setuptools' `build_ext`."""

    extensions: list[Extension]

    def get_ext_fullpath(self, name: str) -> str:
        """Where an extension's library belongs."""


def for_cuda(extension: Extension) -> bool:
    """Whether an extension has CUDA sources, or is linked with CUDA's libraries."""
    return any(Path(source).suffix in CUDA_SUFFIXES for source in extension.sources) or not CUDA_LIBRARIES.isdisjoint(
        extension.libraries
    )


def sources_of(extension: Extension, outside: Callable[[str], bool]) -> Sources:
    """An extension as the builder takes it; folders of PyTorch and CUDA, which are not `outside`, it knows itself."""
    given = extension.extra_compile_args or []
    both = given if isinstance(given, dict) else {"cxx": list(given), "nvcc": list(given)}
    defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in extension.define_macros]
    macros = (*defined, *(f"-U{name}" for name in extension.undef_macros))
    return Sources(
        extension.name.rpartition(".")[2],
        tuple(Path(source).absolute() for source in extension.sources),
        (*macros, *both.get("cxx", ())),
        (*macros, *both.get("nvcc", ())),
        (
            *(os.path.abspath(path) for path in extension.extra_objects),
            *(f"-L{os.path.abspath(path)}" for path in extension.library_dirs if outside(path)),
            *(f"-l{name}" for name in extension.libraries),
            *(f"-Wl,-rpath,{path}" for path in extension.runtime_library_dirs),
            *extension.extra_link_args,
        ),
        tuple(os.path.abspath(path) for path in extension.include_dirs if outside(path)),
    )


def cuda_home() -> str:
    """A folder that stands for an installed toolkit: what `setup.py` files ask of it is its version and its headers."""
    version = torch.version.cuda or ""
    folder = cache_folder(f"cuda-{version}")
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "lib64").mkdir(exist_ok=True)
    nvcc, text = folder / "bin" / "nvcc", NVCC.format(version=version)
    if not nvcc.exists() or nvcc.read_text(encoding="utf-8") != text:
        made = nvcc.with_name(f"nvcc-{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.chmod(0o755)
        os.replace(made, nvcc)
    if not (folder / "include").is_symlink():
        (folder / "include").symlink_to(clang.INCLUDE)
    return str(folder)


def replacements(module: types.ModuleType, build: Callable[[Sources], Path]) -> list[Patch]:
    """What is replaced in `torch.utils.cpp_extension`."""
    if not clang.available():

        def refuse(*_: str) -> str:
            raise OSError(f"this program builds a CUDA extension, and {WHY}: {clang.MISSING}, or {INSTEAD}")

        return [Patch(module, "_join_cuda_home", refuse)]
    home = cuda_home()
    command = getattr(module, "_BUILD_EXTENSION_CLASS", None) or module.BuildExtension
    stock: Callable[[Command], None] = command.build_extensions
    own = (str(Path(torch.__file__).parent), home)

    def outside(path: str) -> bool:
        return not os.path.abspath(path).startswith(own)

    def build_extensions(self: Command) -> None:
        everything = self.extensions
        for extension in filter(for_cuda, everything):
            made = build(sources_of(extension, outside))
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, target)
        self.extensions = [extension for extension in everything if not for_cuda(extension)]
        try:
            if self.extensions:
                stock(self)
        finally:
            self.extensions = everything

    return [Patch(module, "CUDA_HOME", home), Patch(command, "build_extensions", build_extensions)]
