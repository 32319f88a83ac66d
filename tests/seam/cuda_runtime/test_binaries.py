"""PTX is found in what a program registers."""

from __future__ import annotations

import ctypes
import struct

import pytest

from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime.binaries import MAGIC, ptx_at, unpacked

TEXT = b".version 8.0\n.target sm_80\n.visible .entry f() { ret; }\n"


def entry(kind: int, payload: bytes, flags: int = 0, whole: int = 0) -> bytes:
    """An entry of a fat binary, with a header of 64 bytes."""
    head = struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + struct.pack("<I", len(payload)) + b"\0" * 20
    return head + struct.pack("<QQQ", flags, 0, whole) + payload


def fat(*entries: bytes) -> ctypes.Array:
    body = b"".join(entries)
    return ctypes.create_string_buffer(struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body)


def test_our_own_binaries_are_plain_text() -> None:
    text = ctypes.create_string_buffer(TEXT)
    assert ptx_at(ctypes.addressof(text), "library").encode() == TEXT


def test_ptx_stands_beside_machine_code() -> None:
    binary = fat(entry(2, b"\x7fELF" * 8), entry(1, TEXT + b"\0\0"))
    assert ptx_at(ctypes.addressof(binary), "library").encode() == TEXT


def test_machine_code_alone_is_refused_by_the_librarys_name() -> None:
    binary = fat(entry(2, b"\x7fELF" * 8))
    with pytest.raises(UnsupportedError, match=r"fancy\.so has machine code of GPUs and no PTX"):
        ptx_at(ctypes.addressof(binary), "fancy.so")


def test_compressed_ptx_is_unpacked() -> None:
    # LZ4's block format: four letters, then eight more that repeat them, then the last five as letters.
    packed = bytes([4 << 4 | 4]) + b"abcd" + bytes([4, 0]) + bytes([5 << 4]) + b"12345"
    assert unpacked(packed, 17) == b"abcdabcdabcd12345"
    binary = fat(entry(1, packed, 0x2000, 17))
    assert ptx_at(ctypes.addressof(binary), "library") == "abcdabcdabcd12345"
