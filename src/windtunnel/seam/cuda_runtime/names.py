"""What a kernel and its parameters are called in its source, of the names that the compiler gives them."""

from __future__ import annotations

import ctypes
import ctypes.util
import linecache
import re
from collections.abc import Iterable
from functools import cache

ABI = re.compile(r"\[abi:[^\]]*\]")
NUMBA = "cudapy::"
"""What Numba puts before the module and name of a kernel."""


@cache
def demangled(name: str) -> str:
    """A kernel's name with its template arguments, without its parameters."""
    if not name.startswith("_Z"):
        return name
    full = ABI.sub("", _demangle(name)).removeprefix(NUMBA)
    text = full.removeprefix("void ")
    depth = 0
    for at, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0 and not text.startswith("(anonymous namespace)", at):
            return text[:at].replace("(anonymous namespace)::", "")
    return text


@cache
def _demangle(name: str) -> str:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = function(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


OF_A_FILE = re.compile(r"(\d+)(_(?:GLOBAL__N|INTERNAL)_)")


@cache
def without_file(name: str) -> str:
    """What the compiler calls a kernel or variable, but for what it adds to names that only one file can see: clang an
    `L`, nvcc a namespace of the file's own."""
    if not name.startswith("_Z"):
        return name
    kept, at = "", 0
    for found in OF_A_FILE.finditer(name):
        # The digits before may belong to something else: the length is the tail of them that fits.
        length = next(n for i in range(len(found[1])) if (n := int(found[1][i:])) <= len(name) - found.start(2))
        begin = found.start(2) - len(str(length))
        kept += name[at:begin] + ("1A" if found[2].startswith("_GLOBAL") else "")
        at = found.start(2) + length
    text = re.sub(r"L(?=\d)", "", kept + name[at:])
    alone = re.fullmatch(r"_ZN(\d+)(\w+?)E(\w*)", text)
    if alone and len(alone[2]) == int(alone[1]):  # a namespace is gone and one name is left in it
        text = f"_Z{alone[1]}{alone[2]}{alone[3]}"
    plain = re.fullmatch(r"_Z(\d+)([A-Za-z_]\w*)", text)
    return plain[2] if plain and len(plain[2]) == int(plain[1]) else text


def found_as(name: str, names: Iterable[str]) -> str | None:
    """Which of a module's names is the one that host code knows by `name`, where two compilers named them."""
    same = [one for one in names if without_file(one) == without_file(name)]
    return same[0] if len(same) == 1 else None


def split(text: str) -> list[str]:
    """Parts between commas that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]] if text.strip() else []


_told: dict[str, tuple[str, ...]] = {}


def tell_parameters(kernel: str, names: Iterable[str]) -> None:
    """What the parameters of a kernel are called, of which its source in C++ does not speak; by the compiler's name."""
    _told[kernel] = tuple(names)


def parameter_names(file: str, kernel: str, parameter: str | None) -> str:
    """What a parameter of a kernel is called in its source; the compiler numbers them."""
    if not parameter:
        return ""
    number = re.search(r"(?:_param_|argument )(\d+)$", parameter)
    if number is None:
        return parameter
    told = _told.get(kernel, ())
    return told[int(number[1])] if int(number[1]) < len(told) else _in_source(file, demangled(kernel), int(number[1]))


@cache
def _in_source(file: str, kernel: str, number: int) -> str:
    base = re.escape(kernel.split("<")[0].rpartition("::")[2])
    source = "".join(line for line in linecache.getlines(file) if not line.lstrip().startswith("#"))
    found = re.search(rf"__global__[^;{{}}]*?\b{base}\s*\(", source)
    if found is not None:
        depth, at = 1, found.end()
        while at < len(source) and depth:
            depth += {"(": 1, ")": -1}.get(source[at], 0)
            at += 1
        names = [re.search(r"(\w+)\s*(?:=.*)?$", part.strip()) for part in split(source[found.end() : at - 1])]
        if number < len(names) and (word := names[number]):
            return word[1]
    return f"parameter {number + 1}"
