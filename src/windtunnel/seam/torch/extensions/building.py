"""`torch.utils.cpp_extension`: CUDA sources are compiled for emulated GPUs, in a cache where no real GPU's build is."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import shlex
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from windtunnel.compiler import clang, nvcc
from windtunnel.compiler.clang import CompileError
from windtunnel.compiler.extensions import Builder, MissingFunctionError, Sources, Torch, cache_folder
from windtunnel.compiler.kernels import in_program
from windtunnel.errors import UnsupportedError
from windtunnel.seam.foreign_kernels import INSTEAD, WHY
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.extensions import libraries, packages
from windtunnel.seam.torch.state.state import State

_loaded: dict[str, types.ModuleType] = {}
"""The extensions that `load` has imported, by path."""


def require_clang(name: str, files: Sequence[str]) -> None:
    """Refuse an extension where the compiler is not installed."""
    if not clang.available():
        raise UnsupportedError(
            f"torch.utils.cpp_extension would compile CUDA sources for {name!r} ({', '.join(files)}), and {WHY}: "
            f"{clang.MISSING}, or give the extension sources for the CPU, {INSTEAD}"
        )


def build(state: State, sources: Sources) -> Path:
    """An extension's library, compiled for the first GPU that the program sees."""
    folder = Path(torch.__file__).parent
    gpu = state.machine.devices[0].gpu
    torch_here = Torch(torch.__version__, folder, sysconfig.get_path("include"))
    own = nvcc.required() if state.cuda_compiler == "nvcc" else None
    builder = Builder(torch_here, gpu.compute_capability, own)
    libraries.loaded(builder.library())
    try:
        return builder.build(sources)
    except MissingFunctionError as error:
        raise _missing(sources.name, str(error)) from None
    except CompileError as error:
        raise RuntimeError(f"Error building extension {sources.name!r}:\n{error}") from None


def _load(state: State, sources: Sources) -> types.ModuleType | str:
    """Build an extension and import it, as `torch.utils.cpp_extension.load` does."""
    path = build(state, sources)
    with _naming_what_is_missing(sources.name):
        if not sources.python_module:
            torch.ops.load_library(str(path))
            return str(path)
        return _imported(sources.name, path)


@contextmanager
def _naming_what_is_missing(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError) as error:
        missing = str(error).partition("undefined symbol: ")[2]
        if not missing:
            raise
        raise _missing(name, missing) from None


def _missing(name: str, function: str) -> UnsupportedError:
    return UnsupportedError(
        f"the extension {name!r} calls {function}, a function of CUDA's libraries that is not emulated: {INSTEAD}"
    )


def _imported(name: str, path: Path) -> types.ModuleType:
    known = _loaded.get(str(path))
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _loaded[str(path)] = module
    return module


def _paths(sources: str | Sequence[str]) -> list[str]:
    return [sources] if isinstance(sources, str) else [os.fspath(path) for path in sources]


def _words(options: Sequence[str] | None) -> tuple[str, ...]:
    """Options as the shell hands them on: PyTorch writes them into a command of ninja, one behind the other."""
    return tuple(shlex.split(" ".join(options or ())))


def modules(state: State) -> dict[str, Callable[[types.ModuleType], list[Patch]]]:
    """What is replaced in `torch.utils.cpp_extension` when the program imports it."""
    libraries.begin(state)

    def patches(module: types.ModuleType) -> list[Patch]:
        stock: Callable[..., object] = module._jit_compile
        is_cuda: Callable[[str], bool] = module._is_cuda_file

        def compile(
            name: str, sources: str | Sequence[str], extra_cflags: Sequence[str] | None = None,
            extra_cuda_cflags: Sequence[str] | None = None, *args: object, **kwargs: object,
        ) -> object:  # fmt: skip
            paths = _paths(sources)
            found = [path for path in paths if is_cuda(path)]
            if not found:
                return stock(name, sources, extra_cflags, extra_cuda_cflags, *args, **kwargs)
            require_clang(name, found)
            given = dict(zip(_POSITIONS, args, strict=False)) | kwargs
            if given.get("is_standalone"):
                raise UnsupportedError(f"the extension {name!r} is a standalone program with CUDA sources: {INSTEAD}")
            return _load(
                state,
                Sources(
                    name,
                    tuple(Path(path).absolute() for path in paths),
                    _words(extra_cflags),
                    _words(extra_cuda_cflags),
                    _words(given.get("extra_ldflags")),  # type: ignore[arg-type]
                    tuple(given.get("extra_include_paths") or ()),  # type: ignore[arg-type]
                    bool(given.get("is_python_module", True)),
                ),
            )

        stock_inline: Callable[..., object] = module.load_inline

        @functools.wraps(stock_inline)
        def load_inline(
            name: str, cpp_sources: object, cuda_sources: object = None, *args: object, **kwargs: object
        ) -> object:
            return stock_inline(name, cpp_sources, _with_lines(state, cuda_sources), *args, **kwargs)

        def folder(name: str, verbose: bool) -> str:
            path = cache_folder("sources") / name
            path.mkdir(parents=True, exist_ok=True)
            return str(path)

        return [
            Patch(module, "_jit_compile", compile),
            Patch(module, "_get_build_directory", folder),
            Patch(module, "load_inline", load_inline),
            *packages.replacements(module, lambda sources: build(state, sources)),
        ]

    return {"torch.utils.cpp_extension": patches}


def _with_lines(state: State, sources: object) -> object:
    """CUDA sources that stand in the program's own file, with a line that says where."""
    frame = state.sites.frame(2)
    if frame is None or sources is None:
        return sources
    file = frame.f_code.co_filename
    program = "".join(linecache.getlines(file))
    given = [sources] if isinstance(sources, str) else list(sources)  # type: ignore[call-overload]
    return [in_program(source, file, program) for source in given]


_POSITIONS = (
    "extra_sycl_cflags", "extra_ldflags", "extra_include_paths", "build_directory", "verbose", "with_cuda", "with_sycl",
    "is_python_module", "is_standalone",
)  # fmt: skip
"""The parameters of `_jit_compile` after the options of the two compilers (torch 2.8 and later)."""
