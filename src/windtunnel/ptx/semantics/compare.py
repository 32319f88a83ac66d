"""Comparison, selection and moves."""

from __future__ import annotations

from windtunnel.ptx.emitter import LLVM_TYPES, Emitter
from windtunnel.ptx.semantics import halves
from windtunnel.ptx.semantics.memory import members
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value

FLOATS = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
          "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno"}  # fmt: skip
UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


def compare(e: Emitter, word: str, type: str, a: Value, b: Value) -> Value:
    if a.floating:
        return e.compare(FLOATS[word], a, b)
    if word in ("eq", "ne"):
        return e.compare(word, a, b)
    if word in UNSIGNED:
        return e.compare(UNSIGNED[word], a, b)
    if word not in ("lt", "le", "gt", "ge"):
        raise KeyError(word)
    return e.compare(("s" if type[0] == "s" else "u") + word, a, b)


def _compared(e: Emitter, i: Instruction, type: str) -> list[Value]:
    """One predicate, or one for each half of a packed type."""
    word = i.opcode[1]
    if type in halves.PACKED:
        lanes = zip(*(halves.unpack(e, operand, type) for operand in i.operands[1:3]), strict=True)
        return [compare(e, word, type, a, b) for a, b in lanes]
    a, b = (halves.read(e, operand, type, i) for operand in i.operands[1:3])
    return [compare(e, word, type, a, b)]


def set_predicate(e: Emitter, i: Instruction) -> None:
    targets = i.operands[0].split("|")
    found = _compared(e, i, i.type)
    if len(found) == 2:
        for target, value in zip(targets, found, strict=True):
            e.put(target.strip(), value)
        return
    result = found[0]
    opposite = e.operation("xor", result, e.constant("i1", 1)) if len(targets) > 1 else None
    combine = next((part for part in i.opcode if part in ("and", "or", "xor")), None)
    if combine:
        other = e.value(i.operands[3], "i1")
        result = e.operation(combine, result, other)
        opposite = e.operation(combine, opposite, other) if opposite else None
    e.put(targets[0].strip(), result)
    if opposite:
        e.put(targets[1].strip(), opposite)


def set_number(e: Emitter, i: Instruction) -> None:
    """`set`: ones, or 1.0 for a floating-point result."""
    kind = i.opcode[-2]
    found = _compared(e, i, i.type)
    combine = next((part for part in i.opcode if part in ("and", "or", "xor")), None)
    if combine:
        found = [e.operation(combine, value, e.value(i.operands[3], "i1")) for value in found]
    ones = {"f16x2": 0x3C00, "bf16x2": 0x3F80, "f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}
    if len(found) == 2:
        one = e.constant("i16", ones.get(kind, 0xFFFF))
        parts = [e.resize(e.select(p, one, e.constant("i16", 0)), "i32") for p in found]
        e.put(i.operands[0], e.operation("or", parts[0], e.operation("shl", parts[1], e.constant("i32", 16))))
        return
    type = {"f16": "i16", "bf16": "i16", "f32": "i32", "u32": "i32", "s32": "i32", "u16": "i16", "s16": "i16"}[kind]
    e.put(i.operands[0], e.select(found[0], e.constant(type, ones.get(kind, -1)), e.constant(type, 0)))


def select(e: Emitter, i: Instruction) -> None:
    type = LLVM_TYPES[i.type]
    a, b = (e.value(operand, type) for operand in i.operands[1:3])
    e.put(i.operands[0], e.select(e.value(i.operands[3], "i1"), a, b))


def select_by_sign(e: Emitter, i: Instruction) -> None:
    """`slct`: by the sign of the third operand; NaN counts as negative, -0.0 does not."""
    type = LLVM_TYPES[i.opcode[-2]]
    a, b = (e.value(operand, type) for operand in i.operands[1:3])
    c = e.value(i.operands[3], LLVM_TYPES[i.type])
    condition = e.compare(
        "oge" if c.floating else "sge", c, e.number(c.type, 0.0) if c.floating else e.constant(c.type, 0)
    )
    e.put(i.operands[0], e.select(condition, a, b))


def move(e: Emitter, i: Instruction) -> None:
    target, source = i.operands
    type = LLVM_TYPES[i.type]
    if target[0] == "{":
        parts = members(target)
        whole = e.value(source, type)
        width = whole.bits // len(parts)
        for j, part in enumerate(parts):
            shifted = e.operation("lshr", whole, e.constant(type, width * j)) if j else whole
            e.put(part, e.resize(shifted, f"i{width}"))
        return
    if source[0] == "{":
        parts = members(source)
        width = e.constant(type, 0).bits // len(parts)
        result = e.resize(e.value(parts[0], f"i{width}"), type)
        for j, part in enumerate(parts[1:], 1):
            value = e.resize(e.value(part, f"i{width}"), type)
            result = e.operation("or", result, e.operation("shl", value, e.constant(type, width * j)))
        e.put(target, result)
        return
    e.put(target, e.value(source, type))
