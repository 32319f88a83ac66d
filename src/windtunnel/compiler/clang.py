"""Which clang compiles CUDA C++: that of the `ziglang` wheel, or one on the PATH."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windtunnel.errors import UnsupportedError

OLDEST = 18
"""The first version whose device pass is known to take the headers in `include/`."""
NAMES = ("clang++", *(f"clang++-{version}" for version in range(25, OLDEST - 1, -1)))
INCLUDE = Path(__file__).parent / "include"
RUNTIME = Path(__file__).parent / "runtime"
QUIET = ("-w", "-fno-caret-diagnostics", "-ferror-limit=20")
MISSING = 'pip install "windtunnel[cuda]"'
"""What a user without the extra does."""


REFUSED = (
    (r"requires relocatable device code", "kernels that launch kernels (dynamic parallelism) are not emulated"),
    (r"'(?:tex\dD|tex1Dfetch|texCubemap|surf\dD|textureReference|texture)\w*'",
     "textures and surfaces are not emulated: read the memory itself"),
    (r"(?:undeclared identifier|unknown type name) '(?:cublas|cudnn|cufft|cusparse|cusolver|curand|nccl)\w+'"
     r"|'(?:cudnn\w*|nccl|nvml|npp\w*|cufft\w*|nvJitLink)\.h' file not found",
     "calls of cuBLAS, cuDNN, cuFFT, NCCL and the like are not emulated: take the kernels into a file without them"),
    (r"(?:undeclared identifier|unknown type name) '(?:cudaGraph|CUgraph)\w+'",
     "graphs that host code builds (cudaGraph...) are not emulated: capture them by torch.cuda.graph, or launch the "
     "kernels one by one"),
    (r"(?:undeclared identifier|unknown type name) '(?:cudaMemPool|cudaDeviceGetDefaultMemPool)\w*'",
     "pools with settings of their own (cudaMemPool...) are not emulated: cudaMallocAsync takes memory all the same"),
    (r"/cuda/__driver/driver_api\.h:\d+:\d+: error",
     "Thrust's algorithms and CUB's device-wide functions ask CUDA's driver, and host code does not find it here: call "
     "CUB's block and warp functions in a kernel, or PyTorch's operators"),
    (r"'((?:cuda/|cub/|thrust/|cute/|cutlass/)[\w/.]+)' file not found",
     "windtunnel brings no CUB, Thrust, libcu++ or CUTLASS: name the folder of your own copy (`extra_include_paths`, "
     "`include_dirs` or -I)"),
)  # fmt: skip
"""What clang says of what is not emulated, and what is to be said instead."""


class CompileError(RuntimeError):
    """A source that clang does not take; its text is clang's."""


@dataclass(frozen=True)
class Clang:
    """A clang: the command that starts it, its version, and the folder of its own headers where it has to be told."""

    command: tuple[str, ...]
    version: str
    headers: str = ""

    def run(self, *arguments: str | os.PathLike[str]) -> str:
        """Run it; returns what it said on stderr.

        Raises:
            CompileError: it ended with errors.
        """
        command = [*self.command, *(os.fspath(one) for one in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            reasons = [said for pattern, said in REFUSED if re.search(pattern, done.stderr)]
            raise CompileError("\n".join([*reasons, _trimmed(done.stderr)]))
        return done.stderr


def available() -> bool:
    """Whether the extra is installed, or what it would install."""
    return find() is not None and importlib.util.find_spec("llvmlite") is not None


def required() -> Clang:
    """The clang.

    Raises:
        UnsupportedError: there is none.
    """
    found = find()
    if found is None:
        raise UnsupportedError(f"CUDA C++ needs clang {OLDEST} or later, which is not installed: {MISSING}")
    return found


@cache
def find() -> Clang | None:
    """The clang to use, if there is one."""
    spec = importlib.util.find_spec("ziglang")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        zig = folder / "zig"
        if zig.exists():
            version = _version((str(zig), "clang"))
            return Clang((str(zig), "clang"), version, str(folder / "lib" / "include"))
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            version = _version((path,))
            if int(version.split(".")[0] or 0) >= OLDEST:
                return Clang((path,), version)
    return None


def _version(command: tuple[str, ...]) -> str:
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+[\w.]*)", said)
    return found[1] if found else "0"


def _trimmed(text: str, most: int = 60) -> str:
    """clang's errors, without the plea to report a bug to whom it was built by."""
    lines = text.split("PLEASE")[0].splitlines()
    return "\n".join(lines[:most] + ([f"... {len(lines) - most} more lines"] if len(lines) > most else []))
