"""Integer arithmetic, logic, shifts and bit fields. Registers hold bits; a type gives them a sign."""

from __future__ import annotations

from windtunnel.ptx.emitter import LLVM_TYPES, Emitter
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value


def operands(e: Emitter, i: Instruction, type: str) -> list[Value]:
    return [e.value(operand, type) for operand in i.operands[1:]]


def signed(i: Instruction) -> bool:
    return i.type[0] == "s"


def wide_product(e: Emitter, i: Instruction, a: Value, b: Value) -> Value:
    double = f"i{2 * a.bits}"
    return e.operation("mul", e.resize(a, double, signed(i)), e.resize(b, double, signed(i)))


def product(e: Emitter, i: Instruction, a: Value, b: Value) -> Value:
    if i.has("wide"):
        return wide_product(e, i, a, b)
    if i.has("hi"):
        whole = wide_product(e, i, a, b)
        return e.resize(e.operation("lshr", whole, e.constant(whole.type, a.bits)), a.type)
    return e.operation("mul", a, b)


def add_subtract(e: Emitter, i: Instruction) -> None:
    a, b = operands(e, i, LLVM_TYPES[i.type])
    if i.has("sat"):
        e.put(i.operands[0], e.intrinsic(f"s{i.name}.sat", a, b))
        return
    if i.has("cc"):
        carry_out(e, i, a, b, None)
        return
    e.put(i.operands[0], e.operation(i.name, a, b))


CARRY = "$carry"


def carry_out(e: Emitter, i: Instruction, a: Value, b: Value, carried: Value | None) -> None:
    """`add.cc`, `addc`, `sub.cc`, `subc`: the carry is a register of its own."""
    wider = "i64" if a.bits == 32 else "i128"
    x, y = e.resize(a, wider), e.resize(b, wider)
    name = "sub" if i.name.startswith("sub") else "add"
    total = e.operation(name, x, y)
    if carried is not None:
        total = e.operation(name, total, e.resize(carried, wider))
    if i.has("cc"):
        carry = e.resize(e.operation("lshr", total, e.constant(wider, a.bits)), "i16")
        e.graph.registers[CARRY] = "b16"
        e.put(CARRY, e.operation("and", carry, e.constant("i16", 1)))
    e.put(i.operands[0], e.resize(total, a.type))


def add_with_carry(e: Emitter, i: Instruction) -> None:
    values = operands(e, i, LLVM_TYPES[i.type])
    carried = e.value(CARRY, "i16")
    if i.name == "madc":
        a, b, c = values
        carry_out(e, i, product(e, i, a, b), c, carried)
    else:
        carry_out(e, i, values[0], values[1], carried)


def multiply(e: Emitter, i: Instruction) -> None:
    a, b = operands(e, i, LLVM_TYPES[i.type])
    e.put(i.operands[0], product(e, i, a, b))


def multiply_add(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    a, b = (e.value(operand, type) for operand in i.operands[1:3])
    result = product(e, i, a, b)
    c = e.value(i.operands[3], result.type)
    if i.has("cc"):
        carry_out(e, i, result, c, None)
        return
    if i.has("sat"):
        e.put(i.operands[0], e.intrinsic("sadd.sat", result, c))
        return
    e.put(i.operands[0], e.operation("add", result, c))


def low_24(e: Emitter, i: Instruction, value: Value) -> Value:
    eight = e.constant("i32", 8)
    return e.operation("ashr" if signed(i) else "lshr", e.operation("shl", value, eight), eight)


def multiply_24(e: Emitter, i: Instruction) -> None:
    a, b = (low_24(e, i, e.value(operand, "i32")) for operand in i.operands[1:3])
    whole = wide_product(e, i, a, b)
    if i.has("hi"):
        whole = e.operation("lshr", whole, e.constant("i64", 16))
    result = e.resize(whole, "i32")
    if i.name == "mad24":
        result = e.operation("add", result, e.value(i.operands[3], "i32"))
    e.put(i.operands[0], result)


def _quotient(e: Emitter, i: Instruction, a: Value, b: Value) -> Value:
    """Quotient or remainder, by no zero. Hosts divide vectors only in floating point: the quotient of integers of 32
    bits in double, or of 16 in float, is never rounded up to the next whole number."""
    sign = "s" if signed(i) else "u"
    if a.bits > 32 or (a.uniform and b.uniform) or b.text[0] != "%":
        return e.operation(sign + i.name, a, b)
    wide = "double" if a.bits == 32 else "float"
    real = e.operation("fdiv", *(e.convert(f"{sign}itofp", value, wide) for value in (a, b)))
    quotient = e.convert(f"fpto{sign}i", real, a.type)
    return quotient if i.name == "div" else e.operation("sub", a, e.operation("mul", quotient, b))


def divide(e: Emitter, i: Instruction) -> None:
    """By zero an H200 gives all ones, and the dividend as remainder."""
    type = LLVM_TYPES[i.type]
    a, b = operands(e, i, type)
    zero, one, ones = e.constant(type, 0), e.constant(type, 1), e.constant(type, -1)
    by_zero = e.compare("eq", b, zero)
    unsafe = by_zero
    if signed(i):
        unsafe = e.operation("or", by_zero, e.compare("eq", b, ones))
    safe = e.select(unsafe, one, b)
    result = _quotient(e, i, a, safe)
    if signed(i):
        by_minus_one = e.compare("eq", b, ones)
        instead = e.operation("sub", zero, a) if i.name == "div" else zero
        result = e.select(by_minus_one, instead, result)
    e.put(i.operands[0], e.select(by_zero, ones if i.name == "div" else a, result))


def minimum(e: Emitter, i: Instruction) -> None:
    if i.type in ("s16x2", "u16x2"):
        raise KeyError(i.text)
    a, b = operands(e, i, LLVM_TYPES[i.type])
    result = e.intrinsic(("s" if signed(i) else "u") + i.name, a, b)
    if i.has("relu"):
        result = e.intrinsic("smax", result, e.constant(result.type, 0))
    e.put(i.operands[0], result)


def logic(e: Emitter, i: Instruction) -> None:
    a, b = operands(e, i, LLVM_TYPES[i.type])
    e.put(i.operands[0], e.operation(i.name, a, b))


def complement(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    e.put(i.operands[0], e.operation("xor", e.value(i.operands[1], type), e.constant(type, -1)))


def logical_not(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    value = e.value(i.operands[1], type)
    e.put(i.operands[0], e.resize(e.compare("eq", value, e.constant(type, 0)), type))


def negate(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    e.put(i.operands[0], e.operation("sub", e.constant(type, 0), e.value(i.operands[1], type)))


def absolute(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    value = e.value(i.operands[1], type)
    e.put(i.operands[0], e.intrinsic("smax", value, e.operation("sub", e.constant(type, 0), value)))


def shift(e: Emitter, i: Instruction) -> None:
    """Amounts beyond the width are clamped to it."""
    type = LLVM_TYPES[i.type]
    value, amount = e.value(i.operands[1], type), e.value(i.operands[2], "i32")
    bits = value.bits
    arithmetic = i.name == "shr" and signed(i)
    largest = bits - 1 if arithmetic else bits
    clamped = e.intrinsic("umin", amount, e.constant("i32", largest))
    beyond = e.compare("eq", clamped, e.constant("i32", bits))
    within = e.resize(e.operation("and", clamped, e.constant("i32", bits - 1)), type)
    result = e.operation("ashr" if arithmetic else "shl" if i.name == "shl" else "lshr", value, within)
    e.put(i.operands[0], result if arithmetic else e.select(beyond, e.constant(type, 0), result))


def funnel_shift(e: Emitter, i: Instruction) -> None:
    low, high, amount = (e.value(operand, "i32") for operand in i.operands[1:4])
    limit = e.constant("i32", 31 if i.has("wrap") else 32)
    amount = e.operation("and", amount, limit) if i.has("wrap") else e.intrinsic("umin", amount, limit)
    both = e.operation("or", e.operation("shl", e.resize(high, "i64"), e.constant("i64", 32)), e.resize(low, "i64"))
    wide = e.resize(amount, "i64")
    if i.opcode[1] == "r":
        result = e.operation("lshr", both, wide)
    else:
        result = e.operation("lshr", e.operation("shl", both, wide), e.constant("i64", 32))
    e.put(i.operands[0], e.resize(result, "i32"))


def count_bits(e: Emitter, i: Instruction) -> None:
    value = e.value(i.operands[1], LLVM_TYPES[i.type])
    result = e.intrinsic("ctpop", value) if i.name == "popc" else e.intrinsic("ctlz", value, flags=("i1 false",))
    e.put(i.operands[0], e.resize(result, "i32"))


def find_bit(e: Emitter, i: Instruction) -> None:
    """`bfind`: the highest bit that differs from the sign, or all ones."""
    value = e.value(i.operands[1], LLVM_TYPES[i.type])
    if signed(i):
        value = e.operation("xor", value, e.operation("ashr", value, e.constant(value.type, value.bits - 1)))
    zeros = e.intrinsic("ctlz", value, flags=("i1 false",))
    if not i.has("shiftamt"):
        zeros = e.operation("sub", e.constant(value.type, value.bits - 1), zeros)
    none = e.compare("eq", value, e.constant(value.type, 0))
    e.put(i.operands[0], e.resize(e.select(none, e.constant(value.type, -1), zeros), "i32"))


def reverse_bits(e: Emitter, i: Instruction) -> None:
    e.put(i.operands[0], e.intrinsic("bitreverse", e.value(i.operands[1], LLVM_TYPES[i.type])))


def extract_field(e: Emitter, i: Instruction) -> None:
    """`bfe`: bits beyond the width are the sign, or zero."""
    type = LLVM_TYPES[i.type]
    value = e.value(i.operands[1], type)
    byte = e.constant("i32", 255)
    position = e.operation("and", e.value(i.operands[2], "i32"), byte)
    length = e.operation("and", e.value(i.operands[3], "i32"), byte)
    last = e.constant("i32", value.bits - 1)
    wider = "i128"
    whole = e.resize(value, wider, signed(i))
    shifted = e.operation(
        "ashr" if signed(i) else "lshr",
        whole,
        e.resize(e.intrinsic("umin", position, e.constant("i32", value.bits)), wider),
    )
    kept = e.intrinsic("umin", length, e.constant("i32", value.bits))
    unused = e.resize(e.operation("sub", e.constant("i32", 127), kept), wider)
    one = e.constant(wider, 1)
    up = e.operation("shl", e.operation("shl", shifted, unused), one)
    back = e.operation("ashr" if signed(i) else "lshr", e.operation("ashr" if signed(i) else "lshr", up, unused), one)
    result = e.resize(back, type)
    if signed(i):
        # A field that begins beyond the value, or ends there, is filled with the sign bit at min(position + length -
        # 1, last).
        end = e.operation("sub", e.operation("add", position, kept), e.constant("i32", 1))
        at = e.resize(e.intrinsic("umin", end, last), type)
        sign = e.operation(
            "sub", e.constant(type, 0), e.operation("and", e.operation("lshr", value, at), e.constant(type, 1))
        )
        beyond = e.compare("uge", position, e.constant("i32", value.bits))
        result = e.select(beyond, sign, result)
    empty = e.compare("eq", length, e.constant("i32", 0))
    e.put(i.operands[0], e.select(empty, e.constant(type, 0), result))


def insert_field(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    field, base = e.value(i.operands[1], type), e.value(i.operands[2], type)
    byte, wider = e.constant("i32", 255), "i64" if type == "i32" else "i128"
    limit = e.constant("i32", field.bits)
    position = e.intrinsic("umin", e.operation("and", e.value(i.operands[3], "i32"), byte), limit)
    length = e.intrinsic("umin", e.operation("and", e.value(i.operands[4], "i32"), byte), limit)
    one = e.constant(wider, 1)
    ones = e.operation("sub", e.operation("shl", one, e.resize(length, wider)), one)
    mask = e.resize(e.operation("shl", ones, e.resize(position, wider)), type)
    moved = e.resize(e.operation("shl", e.resize(field, wider), e.resize(position, wider)), type)
    kept = e.operation("and", base, e.operation("xor", mask, e.constant(type, -1)))
    e.put(i.operands[0], e.operation("or", e.operation("and", moved, mask), kept))


def make_mask(e: Emitter, i: Instruction) -> None:
    """`bmsk`: ones from a position for a length."""
    wrap = i.has("wrap")
    a, b = (e.value(operand, "i32") for operand in i.operands[1:3])
    limit = e.constant("i32", 31 if wrap else 32)
    a, b = ((e.operation("and", v, limit) if wrap else e.intrinsic("umin", v, limit)) for v in (a, b))
    one = e.constant("i64", 1)
    ones = e.operation("sub", e.operation("shl", one, e.resize(b, "i64")), one)
    e.put(i.operands[0], e.resize(e.operation("shl", ones, e.resize(a, "i64")), "i32"))


def lookup(e: Emitter, i: Instruction) -> None:
    """`lop3`: any logic of three operands, as a table of eight bits."""
    a, b, c = (e.value(operand, "i32") for operand in i.operands[1:4])
    ones = e.constant("i32", -1)
    table = int(i.operands[4], 0)
    inverted = [e.operation("xor", v, ones) for v in (a, b, c)]
    result = e.constant("i32", 0)
    for row in range(8):
        if table >> row & 1:
            terms = [v if row & bit else n for v, n, bit in zip((a, b, c), inverted, (4, 2, 1), strict=True)]
            both = e.operation("and", e.operation("and", terms[0], terms[1]), terms[2])
            result = e.operation("or", result, both)
    e.put(i.operands[0], result)


def permute(e: Emitter, i: Instruction) -> None:
    """`prmt`: four bytes of eight; bit 3 of a selector repeats the byte's sign."""
    modes = {
        "f4e": lambda n, j: (n + j) & 7, "b4e": lambda n, j: (n - j) & 7, "rc8": lambda n, j: n,
        "ecl": lambda n, j: max(j, n), "ecr": lambda n, j: min(j, n), "rc16": lambda n, j: (n & 1) * 2 + (j & 1),
    }  # fmt: skip
    a, b, selector = (e.value(operand, "i32") for operand in i.operands[1:4])
    both = e.operation("or", e.operation("shl", e.resize(b, "i64"), e.constant("i64", 32)), e.resize(a, "i64"))
    mode = next((m for m in modes if i.has(m)), None)
    result = e.constant("i32", 0)
    for j in range(4):
        if mode:
            low = e.operation("and", selector, e.constant("i32", 3))
            pick = e.constant("i32", 0)
            for n in range(4):
                pick = e.select(e.compare("eq", low, e.constant("i32", n)), e.constant("i32", modes[mode](n, j)), pick)
        else:
            pick = e.operation("and", e.operation("lshr", selector, e.constant("i32", 4 * j)), e.constant("i32", 15))
        places = e.operation(
            "shl", e.operation("and", e.resize(pick, "i64"), e.constant("i64", 7)), e.constant("i64", 3)
        )
        byte = e.resize(e.operation("lshr", both, places), "i8")
        sign = e.operation("ashr", byte, e.constant("i8", 7))
        byte = e.select(e.compare("ugt", pick, e.constant("i32", 7)), sign, byte)
        result = e.operation("or", result, e.operation("shl", e.resize(byte, "i32"), e.constant("i32", 8 * j)))
    e.put(i.operands[0], result)


def sum_of_differences(e: Emitter, i: Instruction) -> None:
    a, b, c = operands(e, i, LLVM_TYPES[i.type])
    prefix = "s" if signed(i) else "u"
    difference = e.operation("sub", e.intrinsic(prefix + "max", a, b), e.intrinsic(prefix + "min", a, b))
    e.put(i.operands[0], e.operation("add", difference, c))


def dot_product(e: Emitter, i: Instruction) -> None:
    """`dp4a` and `dp2a`."""
    a, b = (e.value(operand, "i32") for operand in i.operands[1:3])
    result = e.value(i.operands[3], "i32")
    types = [part for part in i.opcode if part in ("s32", "u32")]
    half = 2 if i.has("hi") else 0
    for j in range(4 if i.name == "dp4a" else 2):
        width = 8 if i.name == "dp4a" else 16
        x = e.resize(e.operation("lshr", a, e.constant("i32", width * j)), f"i{width}")
        y = e.resize(e.operation("lshr", b, e.constant("i32", 8 * (j if i.name == "dp4a" else half + j))), "i8")
        term = e.operation("mul", e.resize(x, "i32", types[0] == "s32"), e.resize(y, "i32", types[1] == "s32"))
        result = e.operation("add", result, term)
    e.put(i.operands[0], result)
