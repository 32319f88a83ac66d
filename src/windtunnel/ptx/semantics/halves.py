"""Half and bfloat16 values as numbers of another type, alone and in pairs.

bfloat16 is computed as float and rounded by integer arithmetic, since hosts differ in what they do with it.
"""

from __future__ import annotations

from windtunnel.ptx.emitter import LLVM_TYPES, Emitter
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value

PACKED = {"f16x2": "f16", "bf16x2": "bf16"}


def from_bits(e: Emitter, bits: Value, kind: str) -> Value:
    """16 bits as a half, or a bfloat16 as a float."""
    if kind == "f16":
        return e.bitcast(bits, "half")
    return e.bitcast(e.operation("shl", e.resize(bits, "i32"), e.constant("i32", 16)), "float")


def to_bits(e: Emitter, value: Value, kind: str) -> Value:
    return e.bitcast(value, "i16") if kind == "f16" else round_bfloat(e, value)


def round_bfloat(e: Emitter, value: Value, zero: bool = False) -> Value:
    """A float as the 16 bits of the nearest bfloat16, ties to even; any NaN is 0x7FFF."""
    bits = e.bitcast(value, "i32")
    rounded = bits
    if not zero:
        odd = e.operation("and", e.operation("lshr", bits, e.constant("i32", 16)), e.constant("i32", 1))
        rounded = e.operation("add", bits, e.operation("add", odd, e.constant("i32", 0x7FFF)))
    high = e.resize(e.operation("lshr", rounded, e.constant("i32", 16)), "i16")
    return e.select(e.compare("uno", value, value), e.constant("i16", 0x7FFF), high)


def unpack(e: Emitter, operand: str, kind: str) -> tuple[Value, Value]:
    """The low and the high half of a pair."""
    return split(e, e.value(operand, "i32"), PACKED[kind])


def split(e: Emitter, pair: Value, kind: str) -> tuple[Value, Value]:
    """The low and the high half of 32 bits."""
    low = e.resize(pair, "i16")
    high = e.resize(e.operation("lshr", pair, e.constant("i32", 16)), "i16")
    return from_bits(e, low, kind), from_bits(e, high, kind)


def pack(e: Emitter, low: Value, high: Value) -> Value:
    """Two times 16 bits as 32."""
    shifted = e.operation("shl", e.resize(high, "i32"), e.constant("i32", 16))
    return e.operation("or", e.resize(low, "i32"), shifted)


def read(e: Emitter, operand: str, kind: str, i: Instruction | None = None) -> Value:
    """An operand as the number that its type says; denormals are zero under .ftz."""
    if kind == "bf16":
        return from_bits(e, e.value(operand, "i16"), kind)
    value = e.value(operand, LLVM_TYPES[kind])
    return flush(e, value) if i is not None and i.has("ftz") and value.type == "float" else value


def flush(e: Emitter, value: Value) -> Value:
    """Denormals become zero of their sign."""
    if value.type != "float":
        return value
    size = e.intrinsic("fabs", value)
    tiny = e.compare("olt", size, e.constant("float", 0x00800000))
    zero = e.bitcast(e.operation("and", e.bitcast(value, "i32"), e.constant("i32", -0x80000000)), "float")
    return e.select(tiny, zero, value)
