"""Tensor cores: `ldmatrix`, `movmatrix` and `mma.sync`. Fragments lie as chapter 9.7.14 of the ISA draws them."""

from __future__ import annotations

import re

from windtunnel.ptx.emitter import Emitter
from windtunnel.ptx.semantics.halves import pack
from windtunnel.ptx.semantics.memory import Where, address, load_values, members, permitted
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import LANES, Value, lanes, vector

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
KINDS = ("f16", "bf16", "tf32", "f64", "s8", "u8", "s4", "u4", "f32", "s32", "e4m3", "e5m2")
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "f32": 32, "s32": 32,
        "e4m3": 8, "e5m2": 8}  # fmt: skip

ACCUMULATES = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",), "s8": ("s32",), "u8": ("s32",),
    "s4": ("s32",),
    "u4": ("s32",), "e4m3": ("f32",), "e5m2": ("f32",),
}  # fmt: skip


def load_matrix(e: Emitter, i: Instruction) -> None:
    """Lane l gets row l / 4, columns 2 (l % 4) and the next, of matrix j, whose row r lane 8 j + r addresses."""
    if not i.has("m8n8") or not i.has("b16"):
        raise KeyError(i.text)
    where = address(e, i.operands[1], "shared")
    targets = members(i.operands[0])
    lanes_used = 8 * len(targets)
    wide = vector("i64")

    starts = where.vector(e)

    def rows(picks: list[int], steps: list[int]) -> Where:
        chosen = e.assign(f"shufflevector {wide} {starts.text}, {wide} poison, {vector('i32')} {lanes('i32', picks)}")
        return Where(e.operation("add", Value(chosen, "i64"), Value(lanes("i64", steps), "i64")))

    outer = e.mask
    e.mask = lanes("i1", [int(lane < lanes_used) for lane in range(LANES)])
    permitted(e, i, 0, "shared", where, 16)
    e.mask = outer
    quiet, e.instrumented = e.instrumented, False
    for j, target in enumerate(targets):
        if not i.has("trans"):
            at = rows([8 * j + lane // 4 for lane in range(LANES)], [4 * (lane % 4) for lane in range(LANES)])
            value = load_values(e, i, "shared", at, "i32", 1)[0]
        else:
            parts = []
            for half in (0, 1):
                at = rows(
                    [8 * j + 2 * (lane % 4) + half for lane in range(LANES)], [2 * (lane // 4) for lane in range(LANES)]
                )
                parts.append(load_values(e, i, "shared", at, "i16", 1)[0])
            value = pack(e, parts[0], parts[1])
        e.put(target, value)
    e.instrumented = quiet


def multiply(e: Emitter, i: Instruction) -> None:
    shape = next(found for part in i.opcode if (found := SHAPE.fullmatch(part)))
    m, n, k = (int(number) for number in shape.groups())
    types = [part for part in i.opcode if part in KINDS]
    if len(types) != 4 or any(i.has(word) for word in ("sp", "block_scale", "popc", "xor")):
        raise KeyError(i.text)
    if not (i.has("row") and i.has("col")) or i.opcode.index("row") > i.opcode.index("col"):
        raise KeyError(i.text)
    if types[3] not in ACCUMULATES[types[1]] or types[0] != types[3] or (m, n) not in ((16, 8), (8, 8)):
        raise KeyError(i.text)
    if (m, n) == (8, 8) and not (types[1] == "f64" and k == 4):
        raise KeyError(i.text)
    if i.has("m8n8k4") and types[1] == "f16":
        raise KeyError(i.text)
    groups = [members(operand) for operand in i.operands]
    word = "i64" if types[1] == "f64" else "i32"
    offset = 0
    wide = vector(word)
    step = LANES * (8 if word == "i64" else 4)
    result_at = 0
    for position, group in enumerate(groups[1:]):
        if position == 2:
            result_at = offset
        for register in group:
            e.store(wide, e.lanes(e.value(register, word)), e.offset("%scratch", offset), 64)
            offset += step
    codes = [KINDS.index(t) for t in types]
    arguments = [m, n, k, *codes, len(groups[1]), len(groups[2]), int(i.has("satfinite"))]
    e.declared["wt_mma"] = "declare void @wt_mma(ptr" + ", i32" * len(arguments) + ")"
    e.emit(f"call void @wt_mma(ptr %scratch, {', '.join(f'i32 {a}' for a in arguments)})")
    for j, register in enumerate(groups[0]):
        e.put(register, Value(e.load(wide, e.offset("%scratch", result_at + j * step), 64), word))
