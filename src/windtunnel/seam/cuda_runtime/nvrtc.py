"""NVRTC's interface: clang compiles CUDA C++ to PTX while a program runs. Source: NVRTC's documentation."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from windtunnel import ptx
from windtunnel.compiler.clang import CompileError
from windtunnel.compiler.kernels import compile_text
from windtunnel.seam.cuda_runtime.entries import Export
from windtunnel.seam.cuda_runtime.memory import put, word
from windtunnel.seam.cuda_runtime.names import demangled

SUCCESS, INVALID_PROGRAM, COMPILATION, NO_NAME, INTERNAL = 0, 4, 6, 10, 11
TEXTS = {
    SUCCESS: "NVRTC_SUCCESS", 1: "NVRTC_ERROR_OUT_OF_MEMORY", 2: "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
    3: "NVRTC_ERROR_INVALID_INPUT", INVALID_PROGRAM: "NVRTC_ERROR_INVALID_PROGRAM", 5: "NVRTC_ERROR_INVALID_OPTION",
    COMPILATION: "NVRTC_ERROR_COMPILATION", 7: "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
    8: "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION", 9: "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
    NO_NAME: "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID", INTERNAL: "NVRTC_ERROR_INTERNAL_ERROR",
}  # fmt: skip
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 120)
ARCHITECTURE = re.compile(r"(?:--?gpu-architecture|-arch)(?:=|$)(?:compute|sm)_(\d+)(\d)")
BASE = 0x5586_0000_0000


@dataclass
class NvrtcProgram:
    """A program that is compiled: its text, headers by name, and what came of it."""

    text: str
    headers: dict[str, str]
    expressions: list[str] = field(default_factory=list)
    ptx: bytes = b"\0"
    log: bytes = b"\0"
    lowered: dict[str, ctypes.Array[ctypes.c_char]] = field(default_factory=dict)


class Nvrtc:
    """The library's functions, for one version of CUDA and the GPU that is compiled for unless a program says so."""

    unsupported = failed = INTERNAL

    def __init__(self, version: tuple[int, int], capability: tuple[int, int]) -> None:
        self.version = version
        self.capability = capability
        self.programs: dict[int, NvrtcProgram] = {}
        self._numbers = itertools.count(BASE, 16)
        self._texts = {code: ctypes.create_string_buffer(text.encode()) for code, text in TEXTS.items()}
        self.table = {
            "nvrtcVersion": Export("qq", self.versions),
            "nvrtcGetNumSupportedArchs": Export("q", lambda out: self._put(out, len(ARCHITECTURES))),
            "nvrtcGetSupportedArchs": Export("q", self.architectures),
            "nvrtcGetErrorString": Export("i", self.text),
            "nvrtcCreateProgram": Export("qqqiqq", self.create),
            "nvrtcDestroyProgram": Export("q", self.destroy),
            "nvrtcAddNameExpression": Export("qq", self.expression),
            "nvrtcCompileProgram": Export("qiq", self.compile),
            "nvrtcGetPTXSize": Export("qq", lambda program, out: self._size(program, out, "ptx")),
            "nvrtcGetPTX": Export("qq", lambda program, out: self._bytes(program, out, "ptx")),
            "nvrtcGetCUBINSize": Export("qq", lambda program, out: self._size(program, out, "ptx")),
            "nvrtcGetCUBIN": Export("qq", lambda program, out: self._bytes(program, out, "ptx")),
            "nvrtcGetProgramLogSize": Export("qq", lambda program, out: self._size(program, out, "log")),
            "nvrtcGetProgramLog": Export("qq", lambda program, out: self._bytes(program, out, "log")),
            "nvrtcGetLoweredName": Export("qqq", self.name),
        }  # fmt: skip

    def answer(self, name: str, *arguments: int) -> int:
        """What a call gives, as nvrtcResult."""
        return int(self.table[name].answer(*arguments))

    def versions(self, major: int, minor: int) -> int:
        """The version of CUDA."""
        put(major, self.version[0], 4)
        put(minor, self.version[1], 4)
        return SUCCESS

    def _put(self, out: int, value: int) -> int:
        put(out, value, 4)
        return SUCCESS

    def text(self, code: int) -> int:
        """Where the name of a result lies."""
        return ctypes.addressof(self._texts.get(code, self._texts[INTERNAL]))

    def architectures(self, out: int) -> int:
        """What it compiles for."""
        for at, value in enumerate(ARCHITECTURES):
            put(out + 4 * at, value, 4)
        return SUCCESS

    def create(self, out: int, source: int, name: int, count: int, headers: int, names: int) -> int:
        """A program of a source, and of headers that it includes by name."""
        held = {_text(word(names + 8 * at)): _text(word(headers + 8 * at)) for at in range(count)}
        handle = next(self._numbers)
        title = _text(name) if name else ""
        line = f'#line 1 "{title}"\n' if title.endswith((".cu", ".cuh", ".cpp", ".h")) else ""
        self.programs[handle] = NvrtcProgram(line + _text(source), held)
        put(out, handle)
        return SUCCESS

    def destroy(self, program: int) -> int:
        """Forget a program."""
        known = self.programs.pop(word(program), None)
        put(program, 0)
        return SUCCESS if known is not None else INVALID_PROGRAM

    def expression(self, program: int, name: int) -> int:
        """An instance of a template that is wanted."""
        self.programs[program].expressions.append(_text(name))
        return SUCCESS

    def compile(self, program: int, count: int, options: int) -> int:
        """Compile it; what clang says is the log."""
        source = self.programs.get(program)
        if source is None:
            return INVALID_PROGRAM
        given = [_text(word(options + 8 * at)) for at in range(count)]
        wanted = ARCHITECTURE.search(" ".join(given))
        capability = (int(wanted[1]), int(wanted[2])) if wanted else self.capability
        with TemporaryDirectory() as folder:
            for name, text in source.headers.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            include = (f"-I{folder}",) if source.headers else ()
            try:
                made = compile_text(source.text, capability, (*include, *given), source.expressions)
            except CompileError as error:
                source.log = str(error).encode() + b"\0"
                return COMPILATION
        source.ptx = made.encode() + b"\0"
        names = ptx.load(made).kernels if source.expressions else ()
        kernels = {demangled(name).replace(" ", ""): name for name in names}
        for expression in source.expressions:
            found = kernels.get(expression.lstrip("&").replace(" ", ""))
            if found is not None:
                source.lowered[expression] = ctypes.create_string_buffer(found.encode())
        return SUCCESS

    def name(self, program: int, expression: int, out: int) -> int:
        """The name of such an instance in the PTX."""
        source = self.programs.get(program)
        found = None if source is None else source.lowered.get(_text(expression))
        if found is None:
            return NO_NAME
        put(out, ctypes.addressof(found))
        return SUCCESS

    def _size(self, program: int, out: int, part: str) -> int:
        source = self.programs.get(program)
        if source is None:
            return INVALID_PROGRAM
        put(out, len(getattr(source, part)))
        return SUCCESS

    def _bytes(self, program: int, out: int, part: str) -> int:
        source = self.programs.get(program)
        if source is None:
            return INVALID_PROGRAM
        data: bytes = getattr(source, part)
        ctypes.memmove(out, data, len(data))
        return SUCCESS


def _text(address: int) -> str:
    return ctypes.string_at(address).decode("utf-8", "replace")
