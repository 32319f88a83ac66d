"""Mutants of a file: of its bytes, and of the values in it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.fuzz.formats import Format, Seeds

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 255, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, 0.0, -0.5,
    1e308, float("inf"), float("nan"), "", "x", "NaN", "\x1b[31m",
    "\ud800", "</script>", "/dev/zero", "../..", "a" * 5000,
    [], [[]], {}, {"": 0}, [0] * 1000, "A100", "cuda:0",
)  # fmt: skip
"""What a value is replaced by."""


def mutant(kind: Format, seeds: Seeds, seed: int, number: int) -> bytes:
    """Mutant `number` of a format's files."""
    chance = random.Random(f"{seed} {kind.name} {number}")
    data = chance.choice(seeds.of(kind))
    if kind.decode is not None and chance.random() < 0.7:
        value = kind.decode(data)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            value = changed(chance, value)
        assert kind.encode is not None
        try:
            data = kind.encode(value)
        except (RecursionError, OverflowError, ValueError):  # a value that the format has no way to say
            return damaged(chance, data)
        if chance.random() < 0.8:
            return data
    return damaged(chance, data)


def changed(chance: random.Random, value: Any) -> Any:
    """Plain data with one value of it replaced, removed, repeated or put elsewhere."""
    holder: Any = None
    key: Any = None
    one = value
    while isinstance(one, dict | list) and one and (holder is None or chance.random() < 0.85):
        holder, key = one, chance.choice(list(one) if isinstance(one, dict) else range(len(one)))
        one = holder[key]
    if holder is None:
        return chance.choice(VALUES)
    match chance.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, one)
        case 2 if isinstance(holder, list):
            holder[:] = holder * 50
        case 3 if isinstance(holder, dict):
            holder[chance.choice(("", "x", 7, str(key) * 2))] = holder.pop(key)
        case 4 if isinstance(one, int) and not isinstance(one, bool):
            holder[key] = one + chance.choice((-1, 1, 1 << 20, -(1 << 20), one, -2 * one))
        case 5:
            nested: Any = one
            for _ in range(chance.choice((3, 100, 900))):
                nested = [nested]
            holder[key] = nested
        case _:
            holder[key] = chance.choice(VALUES)
    return value


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Bytes with something flipped, overwritten, cut, doubled or put in between."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(out) + 1)
        length = chance.choice((1, 2, 8, 100))
        match chance.randrange(6):
            case 0 if place < len(out):
                out[place] ^= 1 << chance.randrange(8)
            case 1:
                out[place : place + length] = chance.randbytes(length)
            case 2:
                del out[place : place + length]
            case 3:
                out[place:place] = out[place : place + length]
            case 4:
                out[place:place] = chance.choice((b"\0", b"\xff", b"[", b"{", b'"')) * length
            case _:
                del out[place:]
    return bytes(out)
