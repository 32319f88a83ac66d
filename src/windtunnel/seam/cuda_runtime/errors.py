"""CUDA's error codes, from the table that the C++ headers are made of."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from windtunnel.compiler.clang import INCLUDE

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_SYMBOL, NO_DEVICE, INVALID_DEVICE = 0, 1, 2, 13, 100, 101
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS, ASSERT, MISALIGNED, LAUNCH_FAILURE = 400, 600, 700, 710, 716, 719
COOPERATIVE_TOO_LARGE, CAPTURE_UNSUPPORTED, INVALID_FUNCTION = 720, 900, 98


class Error(NamedTuple):
    """An error as CUDA names it and says it."""

    code: int
    name: str
    text: str


@cache
def table() -> dict[int, Error]:
    """The errors by their codes."""
    text = (INCLUDE / "windtunnel" / "errors.inc").read_text(encoding="utf-8")
    found = re.findall(r'X\((\d+), (\w+), "([^"]*)"\)', text)
    return {int(code): Error(int(code), name, said) for code, name, said in found}


@cache
def by_name() -> dict[str, Error]:
    """The errors by their names."""
    return {error.name: error for error in table().values()}
