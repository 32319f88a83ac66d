"""Runs one instruction over vectors of operands, and rounds exact numbers as IEEE 754 says."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from fractions import Fraction

from windtunnel import ptx

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
INFINITY = math.inf


def width(kind: str) -> int:
    """Bits of the register that holds a type."""
    if kind == "pred":
        return 1
    digits = kind.removesuffix("x2").lstrip("bfuset")
    return int(digits) * (2 if kind.endswith("x2") else 1)


def size(kind: str) -> int:
    """Bytes of an operand in memory."""
    return 4 if kind == "pred" else max(width(kind), 16) // 8


def _register(kind: str, number: int) -> str:
    return {1: "%p", 16: "%h", 32: "%r", 64: "%q2"}[max(width(kind), 16) if kind != "pred" else 1] + str(number)


def run(
    templates: Sequence[tuple[str, Sequence[str]]], inputs: Sequence[str], operands: Sequence[list[int]]
) -> list[list[list[int]]]:
    """Each thread's results of each template, in which {d0} and {a0} stand for registers. Operands and results are
    bits."""
    outputs = [kind for _, kinds in templates for kind in kinds]
    parameters = ",".join(f".param .u64 p{i}" for i in range(len(inputs) + len(outputs)))
    text = [".version 8.8", ".target sm_90", ".address_size 64", f".visible .entry k({parameters})", "{"]
    text += [".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %q<40>; .reg .b32 %t;"]
    text += ["mov.u32 %t, %tid.x; mad.lo.u32 %t, %ctaid.x, 32, %t;"]
    names = {f"a{j}": _register(kind, j) for j, kind in enumerate(inputs)}
    for j, kind in enumerate(inputs):
        text.append(f"ld.param.u64 %q9, [p{j}]; mad.wide.u32 %q9, %t, {size(kind)}, %q9;")
        if kind == "pred":
            text.append(f"ld.global.b32 %r8, [%q9]; setp.ne.b32 {names[f'a{j}']}, %r8, 0;")
        else:
            text.append(f"ld.global.b{8 * size(kind)} {names[f'a{j}']}, [%q9];")
    number = len(inputs)
    for template, kinds in templates:
        targets = {f"d{j}": _register(kind, j + 5) for j, kind in enumerate(kinds)}
        text.append(template.format(**names, **targets))
        for j, kind in enumerate(kinds):
            text.append(f"ld.param.u64 %q9, [p{number}]; mad.wide.u32 %q9, %t, {size(kind)}, %q9;")
            if kind == "pred":
                text.append(f"selp.u32 %r8, 1, 0, {targets[f'd{j}']}; st.global.b32 [%q9], %r8;")
            else:
                text.append(f"st.global.b{8 * size(kind)} [%q9], {targets[f'd{j}']};")
            number += 1
    text += ["ret;", "}"]
    flat = iter(_launch("\n".join(text), inputs, outputs, operands))
    return [[next(flat) for _ in kinds] for _, kinds in templates]


def _launch(text: str, inputs: Sequence[str], outputs: Sequence[str], operands: Sequence[list[int]]) -> list[list[int]]:
    count = len(operands[0])
    assert count % 32 == 0
    buffers = []
    for kind, values in zip(inputs, operands, strict=True):
        data = b"".join((v & ((1 << 8 * size(kind)) - 1)).to_bytes(size(kind), "little") for v in values)
        buffers.append(ctypes.create_string_buffer(data, len(data)))
    buffers += [ctypes.create_string_buffer(size(kind) * count) for kind in outputs]
    memory = ptx.Allocations([ptx.Allocation(ctypes.addressof(b), ctypes.sizeof(b), "") for b in buffers])
    arguments = b"".join(ctypes.addressof(b).to_bytes(8, "little") for b in buffers)
    kernel = ptx.load(text).kernels["k"]
    launch = kernel.launch((count // 32, 1, 1), (32, 1, 1), 0, arguments, memory=memory, checks="all", output=print)
    assert launch.faults == (), launch.faults
    results = []
    for kind, buffer in zip(outputs, buffers[len(inputs) :], strict=True):
        raw, step = buffer.raw, size(kind)
        results.append([int.from_bytes(raw[i * step : (i + 1) * step], "little") for i in range(count)])
    return results


# Numbers


def decode(bits: int, kind: str) -> Fraction | float:
    """The number that bits stand for; infinities and NaN as floats."""
    precision, low, _ = FORMATS[kind]
    fraction_bits, total = precision - 1, BITS[kind]
    exponent_bits = total - precision
    sign = -1 if bits >> (total - 1) & 1 else 1
    exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if fraction else sign * INFINITY
    if not exponent:
        return sign * Fraction(fraction) * Fraction(2) ** (low - fraction_bits)
    return sign * Fraction((1 << fraction_bits) + fraction) * Fraction(2) ** (exponent - 1 + low - fraction_bits)


def negative(bits: int, kind: str) -> bool:
    return bool(bits >> (BITS[kind] - 1) & 1)


def encode(value: Fraction | float, kind: str, mode: str = "rn", zero_sign: int = 0, sticky: int = 0) -> int:
    """An exact number rounded to a format. `sticky` is the sign of a remainder beyond `value` (for roots)."""
    precision, low, high = FORMATS[kind]
    fraction_bits, total = precision - 1, BITS[kind]
    top = 1 << (total - 1)
    infinity = ((1 << (total - precision)) - 1) << fraction_bits
    if isinstance(value, float):
        if math.isnan(value):
            return CANONICAL[kind]
        return infinity | (top if value < 0 else 0)
    if value == 0 and not sticky:
        return top if zero_sign else 0
    sign = value < 0
    size = abs(value)
    exponent = max(low, _exponent(size))
    unit = Fraction(2) ** (exponent - fraction_bits)
    steps, rest = divmod(size, unit)
    steps = int(steps)
    up = {
        "rn": rest > unit / 2 or (rest == unit / 2 and (steps & 1 or sticky > 0)),
        "rz": False,
        "rm": sign and (rest > 0 or sticky > 0),
        "rp": not sign and (rest > 0 or sticky > 0),
        "rna": rest >= unit / 2,
    }[mode]
    steps += bool(up)
    result = steps * unit
    if result >= Fraction(2) ** (high + 1):
        largest = infinity - 1
        over = {"rn": True, "rna": True, "rz": False, "rm": sign, "rp": not sign}[mode]
        return (infinity if over else largest) | (top if sign else 0)
    exponent = max(low, _exponent(result)) if result else low
    fraction = int(result / Fraction(2) ** (exponent - fraction_bits))
    biased = exponent - low + 1 if fraction >> fraction_bits else 0
    return (biased << fraction_bits) | (fraction & ((1 << fraction_bits) - 1)) | (top if sign else 0)


def _exponent(size: Fraction) -> int:
    """floor(log2(size))."""
    if not size:
        return -(1 << 30)
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


def root(value: Fraction, bits: int = 1200) -> tuple[Fraction, int]:
    """A lower bound of the square root with that many bits, and whether something is left."""
    scale = 4**bits
    whole = value.numerator * scale // value.denominator
    found = math.isqrt(whole)
    left = found * found != whole or (value.numerator * scale) % value.denominator != 0
    return Fraction(found, 2**bits), int(left)
