"""The user's own nvcc, which compiles device code to PTX in clang's place where `--cuda-compiler nvcc` asks for it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.compiler.clang import INCLUDE, CompileError
from windtunnel.errors import UnsupportedError

HOMES = ("CUDA_HOME", "CUDA_PATH")
OWN_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""nvcc reads them by itself; what they say is in the options already."""
EMULATED = "emulated by windtunnel"
"""What the stand-in for a toolkit says of its version (`seam/torch/extensions/packages.py`)."""
MISSING = (
    "--cuda-compiler nvcc: no nvcc is on the PATH or in CUDA_HOME. Install NVIDIA's toolkit, or leave the option out: "
    "clang compiles the same sources"
)
LACKING = ("ATen/cuda/CUDAConfig.h", "c10/cuda/impl/cuda_cmake_macros.h")
"""Headers that PyTorch's CPU build lacks; all others of windtunnel's stand for NVIDIA's, which nvcc has."""
OTHERWISE = re.compile(r"-(c|dc|dw|dlink|shared|l(?!ineinfo$).+|L.*|Wl,.*|rdc(=.*)?|-relocatable-device-code(=.*)?)$")
"""Options of another kind of output than PTX, and the linker's."""
WITH_VALUE = ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code", "-o", "-Xlinker")
"""Options of the output and of the GPU, which is the emulated one."""
COMPILED = re.compile(r"Compiling entry function '([^']+)'")
USED = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Nvcc:
    """An nvcc: where it is, and what it says of its version."""

    path: str
    version: str

    def ptx(self, source: Path, output: Path, capability: tuple[int, int], include: Sequence[str],
            options: Sequence[str]) -> None:  # fmt: skip
        """PTX of a `.cu`, with the registers of its kernels as comments where there is a ptxas to say them.

        Raises:
            CompileError: it does not take the source.
        """
        number = "".join(map(str, capability))
        given = wanted(options)
        standard = () if any(re.match(r"--?std\b", option) for option in given) else ("-std=c++20",)
        folders = [part for folder in include for part in ("-isystem", folder)]
        _run([self.path, "--ptx", f"-arch=compute_{number}", "-lineinfo", "--expt-relaxed-constexpr", *standard,
              *folders, *given, str(source), "-o", str(output)])  # fmt: skip
        with output.open("a", encoding="utf-8") as file:
            for name, count in self._registers(output, number, given).items():
                file.write(f"// registers {count} {name}\n")

    def _registers(self, ptx: Path, number: str, options: Sequence[str]) -> dict[str, int]:
        beside = Path(self.path).with_name("ptxas")
        ptxas = str(beside) if beside.exists() else shutil.which("ptxas")
        if ptxas is None:
            return {}
        most = [option for option in options if re.match("--?maxrregcount=", option)]
        machine_code = ptx.with_suffix(".cubin")
        said = _run([ptxas, f"-arch=sm_{number}", "-v", *most, str(ptx), "-o", str(machine_code)])
        machine_code.unlink(missing_ok=True)
        found: dict[str, int] = {}
        name = ""
        for line in said.splitlines():
            if compiled := COMPILED.search(line):
                name = compiled[1]
            elif (used := USED.search(line)) and name:
                found[name] = int(used[1])
        return found


@functools.cache
def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


def required() -> Nvcc:
    """The nvcc of the user's toolkit.

    Raises:
        UnsupportedError: there is none.
    """
    homes = [Path(os.environ[name]) / "bin" for name in HOMES if os.environ.get(name)]
    places = [*map(str, homes), *os.environ.get("PATH", "").split(os.pathsep)]
    for place in filter(None, places):
        path = shutil.which("nvcc", path=place)
        if path is not None and EMULATED not in _version(path):
            return Nvcc(path, _version(path))
    raise UnsupportedError(MISSING)


def without(options: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """The options but those of these names, whose value stands behind a `=` or is the next word."""
    left = iter(options)
    for option in left:
        name, given, _ = option.partition("=")
        if name not in names:
            yield option
        elif not given:
            next(left, None)


def wanted(options: Sequence[str]) -> tuple[str, ...]:
    """A user's options of nvcc without those that say for which GPU it compiles and what it makes."""
    found: list[str] = []
    left = without(options, WITH_VALUE)
    for option in left:
        name, given, value = option.partition("=")
        if name.lstrip("-") == "maxrregcount":
            found.append(f"--maxrregcount={value if given else next(left, '')}")
        elif not OTHERWISE.match(option):
            found.append(option)
    return tuple(found)


def lacking_headers(folder: Path) -> str:
    """A folder with the headers that PyTorch's CPU build lacks, beside which nvcc finds NVIDIA's."""
    for name in LACKING:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(INCLUDE / name, folder / name)
    return str(folder)


def _run(command: Sequence[str]) -> str:
    """Run it; returns what it said."""
    variables = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=variables)
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr
