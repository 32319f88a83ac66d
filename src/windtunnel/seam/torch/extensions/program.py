"""`windtunnel run program.cu`: a CUDA program with a `main` of its own, as a library whose `main` this process calls.

What nvcc would be given beside the file (`-I`, further sources) stands in nvcc's own variables, NVCC_PREPEND_FLAGS and
NVCC_APPEND_FLAGS.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import torch  # noqa: F401  the emulation begins with it

from windtunnel.compiler.clang import INCLUDE
from windtunnel.compiler.extensions import CUDA_SUFFIXES, Sources
from windtunnel.errors import UsageError
from windtunnel.seam.cuda_runtime.host_lines import HostLines, loaded_at
from windtunnel.seam.sites import from_line
from windtunnel.seam.torch.extensions import building, libraries

HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c++")
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
MAIN = re.compile(r"^[\w\s]*\bmain\s*\(", re.MULTILINE)
SYSTEM = ctypes.CDLL(None)


def described(file: Path, variables: Mapping[str, str]) -> Sources:
    """The program's sources and options, as nvcc would take them from its command line and these variables."""
    words = [word for name in FLAGS for word in shlex.split(variables.get(name, ""))]
    files = [word for word in words if word.endswith((*CUDA_SUFFIXES, *HOST_SUFFIXES)) and word[0] != "-"]
    options = tuple(word for word in words if word not in files)
    paths = (file.absolute(), *(Path(one).absolute() for one in files))
    linked = tuple(word for word in options if word.startswith(("-l", "-L")))
    return Sources(re.sub(r"\W", "_", file.stem), paths, options, options, linked, python_module=False)


def run(file: Path, arguments: list[str]) -> None:
    """Build a program, call its `main`, and end as it ends.

    Raises:
        UsageError: it has no `main`, or this is no emulation.
    """
    state = libraries.current()
    if state is None:
        raise UsageError(f"{file} runs on emulated GPUs alone: windtunnel run --gpus H100 {file}")
    building.require_clang(file.name, [str(file)])
    sources = described(file, os.environ)
    path = building.build(state, sources)
    program = ctypes.PyDLL(str(path))
    if not hasattr(program, "main"):
        raise UsageError(f"{file} has no main(): `windtunnel kernel` runs one of its kernels alone")
    words = [os.fsencode(word) for word in (str(file), *arguments)]
    given = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    process = libraries.process_of(state)
    process.native, process.launcher.output = True, _printed
    base = loaded_at(ctypes.cast(program.main, ctypes.c_void_p).value or 0)
    process.launcher.lines = HostLines(path, base, (str(INCLUDE), "/usr/"))
    sys.exit(from_line(*_main(sources), lambda: program.windtunnel_main(program.main, len(words), given)))


def _main(sources: Sources) -> tuple[str, int]:
    """Where `main` is, which counts as the line of what host code asks of CUDA before or after it."""
    for path in sources.files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found = MAIN.search(text)
        if found:
            return str(path), text.count("\n", 0, found.end()) + 1
    return str(sources.files[0]), 1


def _printed(text: str) -> None:
    """What a kernel prints, among what the host prints by the C library."""
    data = text.encode()
    SYSTEM.fwrite(data, 1, len(data), ctypes.c_void_p.in_dll(SYSTEM, "stdout"))


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), sys.argv[2:])
    except UsageError as error:
        sys.exit(f"windtunnel: {error}")
