"""Floating-point arithmetic, with the rounding that the instruction names."""

from __future__ import annotations

from windtunnel.ptx.emitter import Emitter
from windtunnel.ptx.flow import RAW_NAN
from windtunnel.ptx.semantics import halves
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value, vector

DIRECTED = ("rz", "rm", "rp")
NAN = {"f16": 0x7FFF, "bf16": 0x7FFFFFFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
OPCODES = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
CODES = ("add", "sub", "mul", "div", "fma", "sqrt", "rcp")


def elementwise(e: Emitter, i: Instruction) -> None:
    """Computes one number, or both of a pair."""
    kind = i.type
    if kind in halves.PACKED:
        parts = [halves.unpack(e, operand, kind) for operand in i.operands[1:]]
        both = [compute(e, i, halves.PACKED[kind], [part[half] for part in parts]) for half in (0, 1)]
        bits = [halves.to_bits(e, value, halves.PACKED[kind]) for value in both]
        e.put(i.operands[0], halves.pack(e, bits[0], bits[1]))
        return
    values = [halves.read(e, operand, kind, i) for operand in i.operands[1:]]
    result = compute(e, i, kind, values)
    if i.has("ftz"):
        result = halves.flush(e, result)
    e.put(i.operands[0], halves.to_bits(e, result, kind) if kind == "bf16" else result)


def compute(e: Emitter, i: Instruction, kind: str, values: list[Value]) -> Value:
    result = _raw(e, i, kind, values)
    if kind == "f32" and i.name not in ("neg", "abs", "min", "max", *RAW_NAN):
        result = canonical(e, result, kind)
    if i.has("sat"):
        result = clamp(e, result)
    if i.has("relu"):
        result = relu(e, result, kind)
    return result


def relu(e: Emitter, value: Value, kind: str) -> Value:
    positive = e.intrinsic("maximumnum", value, e.number(value.type, 0.0))
    return e.select(e.compare("uno", value, value), e.constant(value.type, NAN[kind]), positive)


def clamp(e: Emitter, value: Value) -> Value:
    """To 0.0 ... 1.0; NaN gives +0.0."""
    low = e.intrinsic("maximumnum", value, e.number(value.type, 0.0))
    return e.intrinsic("minimumnum", low, e.number(value.type, 1.0))


def _raw(e: Emitter, i: Instruction, kind: str, values: list[Value]) -> Value:
    name = i.name
    direction = next((d for d in DIRECTED if i.has(d)), None)
    if direction:
        return rounded(e, "fma" if name == "mad" else name, direction, values)
    if name in ("fma", "mad"):
        return fused(e, kind, values)
    if name == "neg":
        return e.convert_negated(values[0])
    if name == "abs":
        return e.intrinsic("fabs", values[0])
    if name in ("min", "max"):
        return smaller(e, i, kind, values)
    if name in ("sqrt", "rcp"):
        return (
            e.intrinsic("sqrt", values[0])
            if name == "sqrt"
            else e.operation("fdiv", e.number(values[0].type, 1.0), values[0])
        )
    if kind == "f16":  # twice the precision and two bits more: rounding twice is rounding once
        wide = [e.convert("fpext", v, "float") for v in values]
        return canonical(e, e.convert("fptrunc", e.operation(OPCODES[name], *wide), "half"), "f16")
    return e.operation(OPCODES[name], *values)


def fused(e: Emitter, kind: str, values: list[Value]) -> Value:
    """One rounding. A product of halves is exact in double, and so is the sum's rounding to odd."""
    if kind in ("f16", "bf16"):
        a, b, c = (e.convert("fpext", v, "double") for v in values)
        product = e.operation("fmul", a, b)
        total = round_to_odd(e, product, c)
        single = odd_float(e, total)
        return canonical(e, e.convert("fptrunc", single, "half"), "f16") if kind == "f16" else single
    return e.intrinsic("fma", *values)


def round_to_odd(e: Emitter, a: Value, b: Value) -> Value:
    """a + b in double, with the last bit set where the sum is inexact: a later rounding then errs nowhere."""
    total = e.operation("fadd", a, b)
    back = e.operation("fsub", total, a)
    error = e.operation("fadd", e.operation("fsub", a, e.operation("fsub", total, back)), e.operation("fsub", b, back))
    bits = e.bitcast(total, "i64")
    inexact = e.compare("one", error, e.number("double", 0.0))
    even = e.compare("eq", e.operation("and", bits, e.constant("i64", 1)), e.constant("i64", 0))
    up = e.compare("ogt", error, e.number("double", 0.0))
    positive = e.compare("sge", bits, e.constant("i64", 0))
    step = e.select(e.compare("eq", up, positive), e.constant("i64", 1), e.constant("i64", -1))
    adjusted = e.operation("add", bits, step)
    return e.bitcast(e.select(e.operation("and", inexact, even), adjusted, bits), "double")


def odd_float(e: Emitter, value: Value) -> Value:
    """A double as a float, rounded to odd, so that the rounding to bfloat16 is the only one."""
    near = e.convert("fptrunc", value, "float")
    back = e.convert("fpext", near, "double")
    bits = e.bitcast(near, "i32")
    inexact = e.compare("one", back, value)
    even = e.compare("eq", e.operation("and", bits, e.constant("i32", 1)), e.constant("i32", 0))
    larger = e.compare("ogt", value, back)
    positive = e.compare("sge", bits, e.constant("i32", 0))
    step = e.select(e.compare("eq", larger, positive), e.constant("i32", 1), e.constant("i32", -1))
    return e.bitcast(e.select(e.operation("and", inexact, even), e.operation("add", bits, step), bits), "float")


def canonical(e: Emitter, value: Value, kind: str) -> Value:
    """A NaN as the GPU's. As integers: LLVM takes one NaN for another."""
    bits = e.integer(value)
    return e.bitcast(e.select(e.compare("uno", value, value), e.constant(bits.type, NAN[kind]), bits), value.type)


def smaller(e: Emitter, i: Instruction, kind: str, values: list[Value]) -> Value:
    """`min` and `max`: a NaN loses, or wins under .NaN; -0.0 is below +0.0."""
    if i.has("xorsign"):
        raise KeyError(i.text)
    wide = [e.convert("fpext", v, "float") if kind == "f16" else v for v in values]
    name = ("minimum" if i.name == "min" else "maximum") + ("" if i.has("NaN") else "num")
    result = wide[0]
    for other in wide[1:]:
        result = e.intrinsic(name, result, other)
    if kind == "f16":
        result = e.convert("fptrunc", result, "half")
    return canonical(e, result, kind)


def rounded(e: Emitter, name: str, direction: str, values: list[Value], result: str = "") -> Value:
    """By the host's own rounding modes, a lane at a time."""
    type = values[0].type
    wide = vector(type)
    areas = [e.offset("%scratch", 256 * k) for k in range(4)]
    for area, value in zip(areas, values, strict=False):
        e.store(wide, e.lanes(value), area, 64)
    function = {"float": "wt_round_float", "double": "wt_round_double"}[type]
    e.declared[function] = f"declare void @{function}(i32, i32, ptr, ptr, ptr, ptr)"
    e.emit(
        f"call void @{function}(i32 {CODES.index(name)}, i32 {DIRECTED.index(direction)}, ptr {areas[0]}, "
        f"ptr {areas[1]}, "
        f"ptr {areas[2]}, ptr {areas[3]})"
    )
    return Value(e.load(wide, areas[3], 64), type)


def copy_sign(e: Emitter, i: Instruction) -> None:
    a, b = (e.value(operand, {"f32": "float", "f64": "double"}[i.type]) for operand in i.operands[1:3])
    e.put(i.operands[0], e.intrinsic("copysign", b, a))


def test_property(e: Emitter, i: Instruction) -> None:
    value = e.value(i.operands[1], {"f32": "float", "f64": "double"}[i.type])
    size = e.intrinsic("fabs", value)
    infinity = e.constant(value.type, 0x7F800000 if value.type == "float" else 0x7FF0000000000000)
    least = e.constant(value.type, 0x00800000 if value.type == "float" else 0x0010000000000000)
    zero = e.number(value.type, 0.0)
    word = i.opcode[1]
    if word == "subnormal":
        result = e.operation("and", e.compare("olt", size, least), e.compare("one", value, zero))
    elif word == "normal":
        result = e.operation("and", e.compare("olt", size, infinity), e.compare("oge", size, least))
    else:
        tests = {
            "finite": ("one", infinity), "infinite": ("oeq", infinity), "number": ("ord", size),
            "notanumber": ("uno", size),
        }  # fmt: skip
        predicate, other = tests[word]
        result = e.compare(predicate, size, other)
    e.put(i.operands[0], result)
