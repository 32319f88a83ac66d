"""printf of the device: the host formats it, as on a GPU."""

from __future__ import annotations

import ctypes
import re
import struct

CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGaAcspn%])")


def c_string(address: int) -> str:
    return ctypes.string_at(address).decode("utf-8", "replace") if address else "(null)"


def formatted(pattern: str, arguments: bytes) -> str:
    """The pattern with the arguments that lie packed behind each other, each aligned to its own size."""
    position = 0

    def take(code: str) -> int | float:
        nonlocal position
        size = struct.calcsize("<" + code)
        position = -(-position // size) * size
        piece = arguments[position : position + size]
        position += size
        value: int | float = struct.unpack("<" + code, piece.ljust(size, b"\0"))[0]
        return value

    def one(found: re.Match[str]) -> str:
        flags, width, precision, length, letter = found.groups()
        if letter == "%":
            return "%"
        if width == "*":
            width = str(take("i"))
        if precision == "*":
            precision = str(take("i"))
        spec = f"%{flags}{width or ''}{'.' + precision if precision is not None else ''}"
        if letter in "eEfFgGaA":
            value = float(take("d"))
            return value.hex() if letter in "aA" else (spec + letter) % value
        wide = length in ("l", "ll", "z", "j", "t")
        if letter == "s":
            return (spec + "s") % c_string(int(take("Q")))
        if letter == "p":
            return (spec + "s") % f"0x{int(take('Q')):x}"
        if letter == "c":
            return (spec + "c") % (int(take("i")) & 0xFF)
        code = ("q" if wide else "i") if letter in "di" else ("Q" if wide else "I")
        number = int(take(code))
        if length in ("h", "hh"):
            number = _short(number, 16 if length == "h" else 8, letter in "di")
        return (spec + ("d" if letter in "diu" else letter)) % number

    return CONVERSION.sub(one, pattern)


def _short(number: int, bits: int, signed: bool) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> (bits - 1) else number
