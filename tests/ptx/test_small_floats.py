"""`cvt` to the formats of the OCP's microscaling specification and back, against their definition on exact numbers."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.ptx.harness import run

pytest.importorskip("llvmlite")
FORMATS = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}
"""Bits of exponent and fraction, and the bias (OCP Microscaling Formats 1.0, tables 3 to 5)."""


def value(kind: str, code: int) -> float:
    exponents, fractions, bias = FORMATS[kind]
    sign = -1 if code >> (exponents + fractions) & 1 else 1
    exponent, fraction = code >> fractions & ((1 << exponents) - 1), code & ((1 << fractions) - 1)
    if exponent == 0:
        return math.copysign(fraction * 2.0 ** (1 - bias - fractions), sign)
    return sign * (1 + fraction * 2.0**-fractions) * 2.0 ** (exponent - bias)


def nearest(kind: str, x: float) -> int:
    """The code of the nearest number, the even one of two; what is too large is the largest, NaN the positive one."""
    bits = sum(FORMATS[kind][:2])
    codes = range(1 << bits)
    if math.isnan(x):
        return codes[-1]
    size = min(Fraction(abs(x)) if math.isfinite(x) else Fraction(10**6), Fraction(10**6))
    found = min(codes, key=lambda code: (abs(Fraction(value(kind, code)) - size), code & 1))
    return found | (math.copysign(1, x) < 0) << bits


def numbers(count: int) -> np.ndarray:
    drawn = random.Random(44)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, -3e38, 0.25, 0.75, 1.25, 5.0, 7.25, 30.0, 2.0**-127]
    drawn_ones = [drawn.choice([-1, 1]) * drawn.random() * 2.0 ** drawn.randrange(-8, 6) for _ in range(count)]
    halves = [drawn.randrange(-64, 65) / 16 for _ in range(count)]
    return np.array((special + halves + drawn_ones)[:count] + [1.0] * max(0, count - 500), np.float32)[:count]


def bits(values: np.ndarray) -> list[int]:
    return values.view(np.uint32).tolist()


@pytest.mark.parametrize("kind", FORMATS)
def test_narrow_floats(kind: str) -> None:
    high, low = numbers(192), numbers(192)[::-1].copy()
    register, width = ("b8", 4) if kind == "e2m1" else ("b16", 8)
    widen = "cvt.u32.u8 {d0}, %y1;" if register == "b8" else "cvt.u32.u16 {d0}, %y1;"
    text = (
        f"{{{{ .reg .{register} %y<3>; cvt.rn.satfinite.{kind}x2.f32 %y1, {{a0}}, {{a1}}; {widen}"
        f" cvt.rn.f16x2.{kind}x2 {{d1}}, %y1; }}}}"
    )
    codes, back = run([(text, ["b32", "f16x2"])], ["f32", "f32"], [bits(high), bits(low)])[0]
    mask = (1 << width) - 1
    for number, code, pair in zip(range(192), codes, back, strict=True):
        wanted = [nearest(kind, float(low[number])), nearest(kind, float(high[number]))]
        assert [code & mask, code >> width] == wanted
        halves = np.array([pair & 0xFFFF, pair >> 16], np.uint16).view(np.float16).tolist()
        assert halves == [value(kind, one) for one in wanted]


@pytest.mark.parametrize("kind", FORMATS)
def test_rounding_by_chance(kind: str) -> None:
    drawn = random.Random(46)
    given = [numbers(192), numbers(192)[::-1].copy(), np.roll(numbers(192), 50), np.roll(numbers(192), 99)]
    chance = [drawn.getrandbits(32) for _ in range(192)]
    bits_each, register = (4, "b16") if kind == "e2m1" else (8, "b32")
    to = "cvt.u32.u16 {d0}, %y1;" if register == "b16" else "mov.b32 {d0}, %y1;"
    text = (
        f"{{{{ .reg .{register} %y1; cvt.rs.satfinite.{kind}x4.f32 %y1, {{{{{{a0}}, {{a1}}, {{a2}}, {{a3}}}}}}, {{a4}};"
        f" {to} }}}}"
    )
    (codes,) = run([(text, ["b32"])], ["f32"] * 4 + ["b32"], [*map(bits, given), chance])[0]
    largest = (1 << sum(FORMATS[kind][:2])) - 1
    for number, code in enumerate(codes):
        for place in range(4):
            x = float(given[3 - place][number])
            found = code >> bits_each * place & ((1 << (sum(FORMATS[kind][:2]) + 1)) - 1)
            wanted = chosen(kind, abs(x), chance[number] >> 8 * place & 255)
            sign = 0 if math.isnan(x) else int(math.copysign(1, x) < 0)
            assert found == wanted | sign * (largest + 1)


def chosen(kind: str, size: float, chance: int) -> int:
    """The number below, or the next one where what is cut off, in 256ths, and the chance make up a whole."""
    codes = range(1 << sum(FORMATS[kind][:2]))
    if math.isnan(size) or size >= value(kind, codes[-1]):
        return codes[-1]
    below = max(code for code in codes if value(kind, code) <= size)
    step = Fraction(value(kind, below + 1)) - Fraction(value(kind, below))
    return below + int(math.floor((Fraction(size) - Fraction(value(kind, below))) / step * 256) + chance > 255)


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("finite", [False, True])
def test_scales(up: bool, finite: bool) -> None:
    drawn = random.Random(45)
    patterns = [drawn.getrandbits(32) for _ in range(150)]
    patterns += [(e << 23 | f) & 0x7FFFFFFF for e in (0, 1, 127, 253, 254, 255) for f in (0, 1, 0x400000, 0x400001)]
    patterns += [0x80000000 | one for one in patterns[150:168]]
    given = np.array(patterns, np.uint32)
    name = f"cvt.{'rp' if up else 'rz'}{'.satfinite' if finite else ''}.ue8m0x2.f32"
    text = f"{{{{ .reg .b16 %y1; {name} %y1, 0.0, {{a0}}; cvt.u32.u16 {{d0}}, %y1; }}}}"
    back = "{{ .reg .b16 %y1; cvt.u16.u32 %y1, {a0}; cvt.rn.bf16x2.ue8m0x2 {d0}, %y1; }}"
    (codes,), (pairs,) = run([(text, ["b32"]), (back, ["b32"])], ["f32"], [given.tolist()])
    for pattern, code, pair in zip(patterns, codes, pairs, strict=True):
        assert code == scale(abs(float(np.array(pattern, np.uint32).view(np.float32))), up, finite)
        for one, half in ((pattern & 255, pair & 0xFFFF), (pattern >> 8 & 255, pair >> 16)):
            found = float(np.array(half << 16, np.uint32).view(np.float32))
            assert math.isnan(found) if one == 255 else found == 2.0 ** (one - 127)


def scale(size: float, up: bool, finite: bool) -> int:
    """The exponent + 127 of the next power of two: towards zero, or up from more than 2^-127 on."""
    if math.isnan(size):
        return 255
    if math.isinf(size):
        return 254 if finite else 255
    if size < 2.0**-126:
        return int(up and size > 2.0**-127)
    fraction, exponent = math.frexp(size)  # in [0.5, 1)
    found = exponent - 1 + 127 + int(up and fraction > 0.5)
    return min(found, 254) if finite else found
