"""`cvt`: between integers, floating-point types and their packed pairs, rounded and saturated as the ISA says."""

from __future__ import annotations

from windtunnel.ptx.emitter import LLVM_TYPES, Emitter
from windtunnel.ptx.semantics import floats, halves
from windtunnel.ptx.syntax import BYTES, Instruction
from windtunnel.ptx.values import Value, vector

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
CODES = {"e4m3": 0, "e5m2": 1, "e2m1": 2, "e2m3": 3, "e3m2": 4}
"""The formats of `wt_narrow` and `wt_widen`."""
BITS = {"e2m1": 4}
"""Of one number in a pair, where it has not a byte."""


def convert(e: Emitter, i: Instruction) -> None:
    to, of = i.opcode[-2], i.opcode[-1]
    if i.has("rs"):
        _by_chance(e, i, to)
    elif to in ("f16x2", "bf16x2") and of == "f32":
        high, low = (_to_half(e, i, halves.read(e, operand, "f32", i), to[:-2]) for operand in i.operands[1:3])
        e.put(i.operands[0], halves.pack(e, low, high))
    elif to == "ue8m0x2":
        _to_scales(e, i, of)
    elif of == "ue8m0x2" and to == "bf16x2":
        e.put(i.operands[0], _from_scales(e, e.resize(e.value(i.operands[1], "i16"), "i32")))
    elif to[:-2] in CODES:
        _to_eight_bits(e, i, to[:-2], of)
    elif of[:-2] in CODES and to == "f16x2":
        kind = of[:-2]
        bits = e.resize(e.value(i.operands[1], "i8" if kind in BITS else "i16"), "i32")
        pair = _call(e, "wt_widen", CODES[kind], bits)
        if i.has("relu"):
            pair = halves.pack(e, *(e.bitcast(floats.relu(e, v, "f16"), "i16") for v in halves.split(e, pair, "f16")))
        e.put(i.operands[0], pair)
    elif to == "tf32":
        e.put(i.operands[0], _to_tf32(e, i, e.value(i.operands[1], "float")))
    elif to in FLOATS or of in FLOATS:
        _with_floats(e, i, to, of)
    else:
        _integers(e, i, to, of)


def _call(e: Emitter, function: str, code: int, value: Value, other: Value | None = None) -> Value:
    """A function of the runtime over 32 lanes of 32 bits; another operand lies where its result will."""
    areas = [e.offset("%scratch", 256 * k) for k in range(2)]
    wide = vector("i32")
    e.store(wide, e.lanes(value), areas[0], 64)
    if other is not None:
        e.store(wide, e.lanes(other), areas[1], 64)
    e.declared[function] = f"declare void @{function}(i32, ptr, ptr)"
    e.emit(f"call void @{function}(i32 {code}, ptr {areas[0]}, ptr {areas[1]})")
    return Value(e.load(wide, areas[1], 64), "i32")


def _to_eight_bits(e: Emitter, i: Instruction, kind: str, of: str) -> None:
    if not i.has("satfinite"):
        raise KeyError(i.text)
    if of == "f16x2":
        low, high = (e.convert("fpext", v, "float") for v in halves.unpack(e, i.operands[1], of))
    elif of == "bf16x2":
        low, high = halves.unpack(e, i.operands[1], of)
    else:
        high, low = (e.value(operand, "float") for operand in i.operands[1:3])
    if i.has("relu"):
        high, low = (floats.relu(e, v, "f32") for v in (high, low))
    parts = [_call(e, "wt_narrow", CODES[kind], e.bitcast(v, "i32")) for v in (low, high)]
    bits = BITS.get(kind, 8)
    both = e.operation("or", parts[0], e.operation("shl", parts[1], e.constant("i32", bits)))
    e.put(i.operands[0], e.resize(both, "i8" if bits < 8 else "i16"))


def _by_chance(e: Emitter, i: Instruction, to: str) -> None:
    """Four numbers, each rounded up with the probability of what is cut off: by eight of the random bits each, from the
    lowest number and bits on. Which bits a GPU takes is published as a picture alone."""
    kind = to.removesuffix("x4")
    if kind not in CODES or kind == to or not i.has("satfinite"):
        raise KeyError(i.text)
    numbers = [part.strip() for part in i.operands[1].strip("{} ").split(",")]
    chance = e.value(i.operands[2], "i32")
    bits, made = BITS.get(kind, 8), e.constant("i32", 0)
    for place, operand in enumerate(reversed(numbers)):
        number = e.value(operand, "float")
        if i.has("relu"):
            number = floats.relu(e, number, "f32")
        drawn = e.operation("lshr", chance, e.constant("i32", 8 * place))
        code = _call(e, "wt_narrow_by_chance", CODES[kind], e.bitcast(number, "i32"), drawn)
        made = e.operation("or", made, e.operation("shl", code, e.constant("i32", bits * place)))
    e.put(i.operands[0], e.resize(made, "i16" if bits < 8 else "i32"))


def _to_scales(e: Emitter, i: Instruction, of: str) -> None:
    """The exponents of two sizes, rounded towards zero or up; signs do not count, NaN is 255."""
    if not (i.has("rz") or i.has("rp")):
        raise KeyError(i.text)
    if of == "bf16x2":
        low, high = halves.unpack(e, i.operands[1], of)
    else:
        high, low = (e.value(operand, "float") for operand in i.operands[1:3])
    code = int(i.has("rp")) + 2 * int(i.has("satfinite"))
    parts = [_call(e, "wt_scale", code, e.bitcast(v, "i32")) for v in (low, high)]
    both = e.operation("or", parts[0], e.operation("shl", parts[1], e.constant("i32", 8)))
    e.put(i.operands[0], e.resize(both, "i16"))


def _from_scales(e: Emitter, bits: Value) -> Value:
    """Powers of two as two bfloat16: 2^-127 has no exponent there, 255 is NaN."""
    parts = []
    for shift in (0, 8):
        one = e.operation("and", e.operation("lshr", bits, e.constant("i32", shift)), e.constant("i32", 255))
        power = e.operation("shl", one, e.constant("i32", 7))
        power = e.select(e.compare("eq", one, e.constant("i32", 0)), e.constant("i32", 0x40), power)
        parts.append(e.select(e.compare("eq", one, e.constant("i32", 255)), e.constant("i32", 0x7FFF), power))
    return halves.pack(e, *parts)


def _to_tf32(e: Emitter, i: Instruction, value: Value) -> Value:
    """13 bits fewer: nearest, ties away from zero (`rna`) or to even (`rn`)."""
    bits = e.bitcast(value, "i32")
    if i.has("rna"):
        bits = e.operation("add", bits, e.constant("i32", 0x1000))
    elif i.has("rn"):
        odd = e.operation("and", e.operation("lshr", bits, e.constant("i32", 13)), e.constant("i32", 1))
        bits = e.operation("add", bits, e.operation("add", odd, e.constant("i32", 0xFFF)))
    elif not i.has("rz"):
        raise KeyError(i.text)
    cut = e.operation("and", bits, e.constant("i32", ~0x1FFF))
    special = e.compare(
        "uge", e.operation("and", e.bitcast(value, "i32"), e.constant("i32", 0x7F800000)), e.constant("i32", 0x7F800000)
    )
    nan = e.select(e.compare("uno", value, value), e.constant("i32", 0x7FFFFFFF), e.bitcast(value, "i32"))
    return e.select(special, nan, cut)


def _to_half(e: Emitter, i: Instruction, value: Value, kind: str) -> Value:
    """A float (or double) as the bits of a half or a bfloat16."""
    zero = i.has("rz")
    if i.has("rm") or i.has("rp"):
        raise KeyError(i.text)
    if i.has("relu"):
        value = floats.relu(e, value, "f32")
    if i.has("satfinite"):
        value = _finite(e, value, kind)
    if i.has("sat"):
        value = floats.clamp(e, value)
    if value.type == "double":
        value = floats.odd_float(e, value)
    if kind == "bf16":
        return halves.round_bfloat(e, value, zero)
    near = floats.canonical(e, e.convert("fptrunc", value, "half"), "f16")
    bits = e.bitcast(near, "i16")
    if not zero:
        return bits
    back = e.convert("fpext", near, value.type)
    larger = e.compare("ogt", e.intrinsic("fabs", back), e.intrinsic("fabs", value))
    return e.select(larger, e.operation("sub", bits, e.constant("i16", 1)), bits)


def _finite(e: Emitter, value: Value, kind: str) -> Value:
    largest = e.number(value.type, 65504.0 if kind == "f16" else 3.3895313892515355e38)
    low = e.intrinsic(
        "maximum",
        value,
        e.convert_negated(largest)
        if value.type == "half"
        else e.number(value.type, -65504.0 if kind == "f16" else -3.3895313892515355e38),
    )
    return e.intrinsic("minimum", low, largest)


def _with_floats(e: Emitter, i: Instruction, to: str, of: str) -> None:
    if of in FLOATS:
        value = halves.read(e, i.operands[1], of, i)
        whole = next((INTEGRAL[m] for m in INTEGRAL if i.has(m)), None)
        if whole:
            value = e.intrinsic(whole, value)
            value = floats.canonical(e, value, of) if of == "f32" else value
        if to not in FLOATS:
            e.put(i.operands[0], _to_integer(e, value, to, of), to[0] == "s")
            return
    else:
        value = e.value(i.operands[1], LLVM_TYPES[of])
        value = _from_integer(e, i, value, to, of[0] == "s")
    e.put(i.operands[0], _to_float(e, i, value, to))


def _from_integer(e: Emitter, i: Instruction, value: Value, to: str, is_signed: bool) -> Value:
    direction = next((d for d in floats.DIRECTED if i.has(d)), None)
    opcode = "sitofp" if is_signed else "uitofp"
    if to == "f64":
        if direction and value.bits == 64:
            raise KeyError(i.text)
        return e.convert(opcode, value, "double")
    if to in ("f16", "bf16") or direction:
        if value.bits == 64:
            if to == "f16" and not direction:  # what a double rounds is infinite as a half
                return e.convert(opcode, value, "double")
            if direction or to != "f32":
                raise KeyError(i.text)
            return e.convert(opcode, value, "float")
        return e.convert(opcode, value, "double")
    return e.convert(opcode, value, "float")


def _to_float(e: Emitter, i: Instruction, value: Value, to: str) -> Value:
    """From float, double, half (or a bfloat16 as a float) to the result's type."""
    if to in ("f16", "bf16"):
        if value.type == "half":
            value = e.convert("fpext", value, "float")
        return _to_half(e, i, value, to)
    type = LLVM_TYPES[to]
    if value.type != type:
        direction = next((d for d in floats.DIRECTED if i.has(d)), None)
        if value.bits < BYTES[to] * 8:
            value = e.convert("fpext", value, type)
        elif direction:
            value = _directed(e, value, direction)
        else:
            value = e.convert("fptrunc", value, type)
    if i.has("sat"):
        value = floats.clamp(e, value)
    return halves.flush(e, value) if i.has("ftz") else value


def _directed(e: Emitter, value: Value, direction: str) -> Value:
    """A double as a float, rounded towards a side: the nearest float, or its neighbour."""
    near = e.convert("fptrunc", value, "float")
    back = e.convert("fpext", near, "double")
    bits = e.bitcast(near, "i32")
    positive = e.compare("oge", value, e.number("double", 0.0))
    above, below = e.compare("ogt", back, value), e.compare("olt", back, value)
    one, minus, none = e.constant("i32", 1), e.constant("i32", -1), e.constant("i32", 0)
    # What is too large goes down: towards zero if it is positive.
    down = e.select(above, e.select(positive, minus, one), none)
    up = e.select(below, e.select(positive, one, minus), none)
    if direction == "rz":
        step = e.select(positive, down, up)
    else:
        step = down if direction == "rm" else up
    return e.bitcast(e.operation("add", bits, step), "float")


def _to_integer(e: Emitter, value: Value, to: str, of: str) -> Value:
    """Clamped to the range; a NaN is 0, or the highest bit where 64 bits are involved."""
    type = LLVM_TYPES[to]
    if value.type == "half":
        value = e.convert("fpext", value, "float")
    result = e.intrinsic("fptosi.sat" if to[0] == "s" else "fptoui.sat", value, result=type)
    if of == "f64" or BYTES[to] == 8:
        nan = e.constant(type, 1 << (8 * BYTES[to] - 1))
        result = e.select(e.compare("uno", value, value), nan, result)
    return result


def _integers(e: Emitter, i: Instruction, to: str, of: str) -> None:
    value = e.value(i.operands[1], LLVM_TYPES[of])
    if i.has("sat"):
        value = _saturated(e, value, to, of)
    value = e.resize(value, LLVM_TYPES[to], of[0] == "s")
    e.put(i.operands[0], value, to[0] == "s")


def _saturated(e: Emitter, value: Value, to: str, of: str) -> Value:
    bits = 8 * BYTES[to]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    wide = e.resize(value, "i128", of[0] == "s")
    wide = e.intrinsic("smin", e.intrinsic("smax", wide, e.constant("i128", low)), e.constant("i128", high))
    return e.resize(wide, value.type)


def pack_integers(e: Emitter, i: Instruction) -> None:
    """`cvt.pack.sat`: two numbers as 16 bits each, or as bytes above what a third operand holds."""
    to, of = i.opcode[-3], i.opcode[-2]
    if of != "s32" and i.type != "s32":
        raise KeyError(i.text)
    high, low = (_saturated(e, e.value(operand, "i32"), to, "s32") for operand in i.operands[1:3])
    bits = 8 * BYTES[to]
    mask = e.constant("i32", (1 << bits) - 1)
    both = e.operation(
        "or",
        e.operation("and", low, mask),
        e.operation("shl", e.operation("and", high, mask), e.constant("i32", bits)),
    )
    if len(i.operands) > 3:
        both = e.operation("or", both, e.operation("shl", e.value(i.operands[3], "i32"), e.constant("i32", 2 * bits)))
    e.put(i.operands[0], both)
