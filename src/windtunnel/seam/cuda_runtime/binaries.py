"""The PTX in what a program registers: our compiler's plain text, or a fat binary of NVIDIA's.

A fat binary is a header (magic, version, its size, the size of what follows) and entries, each with a header of its own
(kind, version, its size, the size of what follows, ..., flags, ..., the size before compression); kind 1 is PTX.
Source: the structures in clang's `OffloadBundler` and in cuda-fatbin readers (`fatBinary.h` as published).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

from windtunnel.errors import UnsupportedError

MAGIC = 0xBA55ED50
PTX, SASS = 1, 2
COMPRESSED_LZ4, COMPRESSED_ZSTD = 0x2000, 0x8000


def ptx_at(address: int, library: str) -> str:
    """The PTX of a registered binary.

    Raises:
        UnsupportedError: it has machine code of a GPU alone, or PTX that is compressed in a way that is not read.
    """
    if struct.unpack("<I", ctypes.string_at(address, 4))[0] != MAGIC:
        return ctypes.string_at(address).decode("utf-8", "replace")
    texts = [text for text in _entries(address, library) if text]
    if not texts:
        raise UnsupportedError(
            f"{library} has machine code of GPUs and no PTX, which an emulated GPU cannot run: build it from its "
            "sources under `windtunnel run`, or with PTX in it (TORCH_CUDA_ARCH_LIST='8.0+PTX')"
        )
    return max(texts, key=len)


def _entries(address: int, library: str) -> Iterator[str]:
    header, size = struct.unpack("<HQ", ctypes.string_at(address + 6, 10))
    at, end = address + header, address + header + size
    while at < end:
        kind, _, head, payload = struct.unpack("<HHIQ", ctypes.string_at(at, 16))
        flags, _, whole = struct.unpack("<QQQ", ctypes.string_at(at + 40, 24))
        if kind == PTX:
            raw = ctypes.string_at(at + head, payload)
            if flags & COMPRESSED_ZSTD:
                raise UnsupportedError(
                    f"the PTX in {library} is compressed with Zstandard: build it with -Xfatbin --compress-mode=none"
                )
            if flags & COMPRESSED_LZ4:
                raw = unpacked(raw[: struct.unpack("<I", ctypes.string_at(at + 16, 4))[0] or payload], whole)
            yield raw.split(b"\0")[0].decode("utf-8", "replace")
        at += head + payload


def unpacked(raw: bytes, size: int) -> bytes:
    """A block of LZ4 (its block format: tokens, literals, and matches of at least four bytes)."""
    out = bytearray()
    at = 0

    def length(first: int) -> int:
        nonlocal at
        if first == 15:
            while True:
                more = raw[at]
                at += 1
                first += more
                if more != 255:
                    break
        return first

    while at < len(raw) and len(out) < size:
        token = raw[at]
        at += 1
        literals = length(token >> 4)
        out += raw[at : at + literals]
        at += literals
        if at >= len(raw) or len(out) >= size:
            break
        offset = raw[at] | raw[at + 1] << 8
        at += 2
        match = length(token & 15) + 4
        for _ in range(match):
            out.append(out[-offset])
    return bytes(out[:size])
