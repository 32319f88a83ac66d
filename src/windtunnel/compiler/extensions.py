"""Builds a PyTorch extension with CUDA sources for emulated GPUs, in a cache of windtunnel's own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel import folders
from windtunnel.compiler import nvcc, torch_headers, unset
from windtunnel.compiler.clang import INCLUDE, RUNTIME, Clang, CompileError, required
from windtunnel.compiler.passes import Settings, fast_math_in, listed_in, run_link, translated
from windtunnel.version import __version__

LIBRARY = "libwindtunnel_cuda-{}.so"
HEADERS = "headers"
"""The file in an extension's folder that lists the headers it was built with."""
MODELLED = (
    "_ZNSt6chrono3_V212steady_clock3nowEv", "_ZNSt6chrono3_V212system_clock3nowEv", "clock_gettime", "gettimeofday",
    "time", "clock", "pthread_cond_timedwait", "pthread_cond_clockwait",
    "pthread_join", "pthread_cond_wait", "_ZNSt6thread4joinEv",
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
    "exit", "pthread_create", "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE",
)  # fmt: skip
"""Functions of the system that the stub library answers by the modelled clock, or without Python's lock,
or before it hands them on (`runtime/clocks.cpp`)."""
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")
CUDA_SUFFIXES = (".cu", ".cuh")
CUDA_LIBRARIES = frozenset((
    "cudart", "cudart_static", "cudadevrt", "cuda", "c10_cuda", "torch_cuda", "torch_cuda_cu", "torch_cuda_cpp",
    "nvrtc", "nvToolsExt", "cublas", "cublasLt", "cudnn", "cufft", "curand", "cusparse", "cusolver", "nccl",
    "nvidia-ml",
))  # fmt: skip
"""What the stub library stands for, or what is missing: its functions are refused by name where they are called."""


OF_CUDA = re.compile(
    r"cu(da|blas|dnn|fft|rand|sparse|solver|[A-Z])|nvrtc|nvml|nvtx|nccl|at::(native::)?cuda|c10::cuda|at::native::\w*cuda"
)
"""Functions of CUDA's libraries, by their names."""


class MissingFunctionError(CompileError):
    """An extension calls a function of CUDA's libraries that nobody answers for; its text is the name."""


@dataclass(frozen=True)
class Torch:
    """The PyTorch that extensions are built for: its version and its folder."""

    version: str
    folder: Path
    python: str

    @property
    def include(self) -> tuple[str, ...]:
        """Where its headers and Python's are."""
        headers = self.folder / "include"
        return str(headers), str(headers / "torch/csrc/api/include"), self.python


@dataclass(frozen=True)
class Sources:
    """An extension as a program describes it, with the options of its two compilers."""

    name: str
    files: tuple[Path, ...]
    options: tuple[str, ...] = ()
    cuda_options: tuple[str, ...] = ()
    link_options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    python_module: bool = True


def cache_folder(name: str) -> Path:
    """A folder of this user's cache, where only emulated builds are.

    Raises:
        OSError: it cannot be made.
    """
    root = os.environ.get("WINDTUNNEL_EXTENSIONS_DIR") or folders.user_cache("extensions")
    if root is None:
        raise FileNotFoundError("there is no home folder to keep compiled extensions in: set WINDTUNNEL_EXTENSIONS_DIR")
    os.makedirs(os.path.dirname(root), exist_ok=True)
    path = Path(folders.private_folder(root)) / name
    path.mkdir(parents=True, exist_ok=True)
    return path


class Builder:
    """Builds extensions for one PyTorch and one compute capability; `device_compiler` makes PTX in clang's place."""

    def __init__(
        self, torch: Torch, capability: tuple[int, int], device_compiler: nvcc.Nvcc | None = None
    ) -> None:  # fmt: skip
        self.torch = torch
        self.nvcc = device_compiler
        self.clang: Clang = required()
        changed = (repr(torch_headers.REPLACED), torch_headers.SLIM, torch_headers.COMMON, repr(unset.OPTIONS))
        # Precompiled headers name the files that they were made of, windtunnel's own among them.
        paths = (str(INCLUDE), *torch.include)
        own = digest(*changed, *texts(INCLUDE), __version__, torch.version, self.clang.version, *paths)
        self.base = cache_folder(f"torch-{torch.version}-{own[:12]}")
        self.headers = self.base / "include"
        self.capability = capability
        if not (self.headers / "windtunnel_common.h").exists():
            torch_headers.write(torch.folder / "include", self.headers)

    def settings(self, sources: Sources, file: Path) -> Settings:
        """How one of the sources is compiled."""
        cuda = file.suffix in CUDA_SUFFIXES
        asked = (*sources.options, *sources.cuda_options)
        given = translated(asked if cuda else sources.options)
        include = (str(self.headers), *self.torch.include)
        folders = tuple(f"-I{folder}" for folder in (*sources.include, *{str(f.parent) for f in sources.files}))
        defined = (f"-DTORCH_EXTENSION_NAME={sources.name}", "-DTORCH_API_INCLUDE_EXTENSION_H")
        own = (nvcc.lacking_headers(self.base / "lacking"), *include) if self.nvcc else ()
        return Settings(self.clang, self.capability, include, (*folders, *defined, *given),
                        cuda and fast_math_in(sources.cuda_options),
                        optimized=not _uses_torch(file) or any(re.match("-O[1-9sf]", option) for option in asked),
                        located=not sources.python_module, many=True, nvcc=self.nvcc,
                        nvcc_options=(*folders, *defined, *asked), nvcc_include=own)  # fmt: skip

    # ------------------------------------------------------------------ the library that stands for CUDA's

    def library(self) -> Path:
        """The stub library, built once for a PyTorch and a version of windtunnel."""
        output = self.base / LIBRARY.format(digest(*texts(RUNTIME))[:8])
        if not output.exists():
            plain = Settings(self.clang, self.capability, (str(self.torch.folder / "include"), *self.torch.include))
            with Work(self.base) as work:
                objects = []
                for source in sorted(RUNTIME.glob("*.cpp")):
                    objects.append(work.path / f"{source.stem}.o")
                    plain.plain(source, objects[-1])
                made = work.path / output.name
                run_link(
                    self.clang, objects, made, (f"-Wl,-soname,{output.name}", f"-L{self.torch.folder}/lib", *LIBRARIES)
                )
                os.replace(made, output)
        return output

    def precompiled(self, kind: str, settings: Settings) -> str:
        """PyTorch's headers, precompiled for one of the passes; empty where clang cannot."""
        form = ("-fast" if settings.fast_math else "") if kind == "device" else "-O1" if settings.optimized else ""
        output = self.base / "{}-sm_{}{}{}.pch".format(kind, *self.capability, form)
        if not output.exists():
            plain = replace(settings, options=(), precompiled={})
            with Work(self.base) as work:
                made = work.path / output.name
                plain.precompile(kind, self.headers / "windtunnel_common.h", made)
                os.replace(made, output)
        return str(output)

    # ------------------------------------------------------------------ an extension

    def build(self, sources: Sources) -> Path:
        """The extension's library, from the cache where its sources, the headers they include and options are the same.

        Raises:
            CompileError: clang or the linker refuses it.
        """
        library = self.library()
        key = digest(self._key(sources), library.name, *own_texts())
        folder = self.base / sources.name / key[:16]
        known = folder / HEADERS
        if known.exists():
            output = folder / _version_of(known) / f"{sources.name}.so"
            if output.exists():
                return output
        folder.mkdir(parents=True, exist_ok=True)
        with Work(folder) as work:
            objects = [self._compile(file, at, sources, work.path) for at, file in enumerate(sources.files)]
            made = work.path / f"{sources.name}.so"
            options = (f"-L{self.torch.folder}/lib", *LIBRARIES, str(library), f"-Wl,-rpath,{self.base}",
                       *(f"-Wl,--wrap={name}" for name in MODELLED),
                       *_linkable(sources.link_options))  # fmt: skip
            missing = [name for name in run_link(self.clang, objects, made, options) if OF_CUDA.match(name)]
            if missing:
                raise MissingFunctionError(missing[0])
            listed = work.path / HEADERS
            listed.write_text("\n".join(self._headers(work.path)), encoding="utf-8")
            place = folder / _version_of(listed)
            place.mkdir(exist_ok=True)
            for file in (*work.path.glob("*.ptx"), made):
                os.replace(file, place / file.name)
            os.replace(listed, known)
        return place / made.name

    def _headers(self, work: Path) -> list[str]:
        """The program's own headers that its sources included; those of PyTorch and the system do not change."""
        found = {os.path.abspath(path) for file in work.glob("*.d") for path in listed_in(file)}
        outside = (
            str(INCLUDE),
            str(self.headers),
            *self.torch.include,
            self.clang.headers or "/usr/",
            "/usr/",
            str(work),
        )
        return sorted(path for path in found if not path.startswith(outside))

    def _compile(self, file: Path, at: int, sources: Sources, work: Path) -> Path:
        made = work / f"{file.stem}-{at}.o"
        settings = self.settings(sources, file)
        try:
            self._passes(file, made, settings, precompile=_uses_torch(file))
        except CompileError as error:
            if "torch" not in str(error) or not _uses_torch(file):
                raise
            whole = replace(settings, options=(*settings.options, "-DWINDTUNNEL_WHOLE_TORCH"))
            self._passes(file, made, whole, precompile=False)
        return made

    def _passes(self, file: Path, made: Path, settings: Settings, precompile: bool) -> None:
        def ready(kind: str) -> Settings:
            return replace(settings, precompiled={kind: self.precompiled(kind, settings)}) if precompile else settings

        if file.suffix in CUDA_SUFFIXES:
            ptx = made.with_suffix(".ptx")
            (settings if settings.nvcc else ready("device")).device(file, ptx)
            ready("host").host(file, made, ptx)
        elif precompile:  # host code alone: as a `.cu`, since PyTorch's headers are precompiled for that already
            ready("host").host(file, made, None)
        else:
            settings.plain(file, made)

    def _key(self, sources: Sources) -> str:
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources.files]
        made_for = str(self.capability), str(self.nvcc or "")
        return digest(sources.name, *made_for, *map(str, sources.files), *texts, *sources.options,
                       *sources.cuda_options, *sources.link_options, *sources.include)  # fmt: skip


class Work:
    """A folder beside where a result belongs, which is removed at the end."""

    def __init__(self, beside: Path) -> None:
        self.path = beside / f"work-{os.getpid()}"

    def __enter__(self) -> Work:
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _uses_torch(file: Path) -> bool:
    text = file.read_text(encoding="utf-8", errors="replace")
    return any(word in text for word in ("torch/", "ATen/", "c10/"))


def _version_of(headers: Path) -> str:
    """A name for what the listed headers contain at present."""
    paths = [Path(line) for line in headers.read_text(encoding="utf-8").splitlines()]
    return digest(*(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in paths))[:16]


def _linkable(options: Sequence[str]) -> list[str]:
    """Link options without CUDA's own libraries."""
    return [option for option in options if option.removeprefix("-l") not in CUDA_LIBRARIES]


def texts(folder: Path) -> list[str]:
    """The files of a folder."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*")) if path.is_file()]


def own_texts() -> list[str]:
    """This folder's own files: another version of them may compile otherwise."""
    return [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]


def digest(*parts: str) -> str:
    """A hash of all of it."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode())
        found.update(b"\0")
    return found.hexdigest()
