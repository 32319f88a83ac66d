"""Loads, stores, atomics, copies, and addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from windtunnel.ptx import layout as at
from windtunnel.ptx.emitter import ADDRESS, Emitter
from windtunnel.ptx.flow import sums_up
from windtunnel.ptx.syntax import BYTES, Instruction
from windtunnel.ptx.values import LANES, Value, lanes, vector

REGISTERS = re.compile(r"-?[\w$%@.#~]+")
LOAD, STORE, ATOMIC = 0, 1, 2
READ_ONLY = 256
"""Beside a load's code: it goes through the cache of what the kernel does not write."""
ADDS, SUMS = 256, 512
"""Beside an atomic's: it adds a whole number, or a floating-point number."""
CODES = {"global": 0, "generic": 0, "const": 0, "shared": 16, "local": 32}
OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def members(operand: str) -> list[str]:
    """The registers of `{a, b}`, or the one that stands alone."""
    return REGISTERS.findall(operand) if operand[0] == "{" else [operand]


def space_of(i: Instruction) -> str:
    if i.has("shared::cluster") and not i.name == "cp":
        raise KeyError("shared::cluster")
    return i.space


def storage(kind: str) -> str:
    """What is moved: bits."""
    return f"i{8 * BYTES[kind]}"


def count_of(i: Instruction) -> int:
    return 4 if i.has("v4") else 2 if i.has("v2") else 1


def parts_of(e: Emitter, operand: str) -> tuple[Value, int]:
    """`[base+offset]` in its own space."""
    found = ADDRESS.match(operand)
    if not found:
        raise KeyError(operand)
    base, offset = found[1], int(found[2] or "0", 0)
    if base in e.graph.registers:
        return e.value(base, e.type_of_register(base)), offset
    if base[0].isdigit():
        return e.constant("i64", int(base, 0)), offset
    return e.symbol(base), offset


def offset_of(e: Emitter, operand: str) -> Value:
    base, offset = parts_of(e, operand)
    value = e.resize(base, "i64")
    return e.operation("add", value, e.constant("i64", offset)) if offset else value


def local_base(e: Emitter) -> Value:
    """The address of each lane's local memory."""
    base = Value(e.load("i64", e.offset("%frame", at.LOCAL), 8), "i64", True)
    strides = Value(lanes("i64", [i * e.layout.local_bytes for i in range(LANES)]), "i64")
    return e.operation("add", base, strides)


@dataclass(frozen=True)
class Where:
    """The host's addresses of the lanes' accesses: a base and what is added to all of them."""

    base: Value
    offset: int = 0

    def vector(self, e: Emitter) -> Value:
        return e.spread(e.operation("add", self.base, e.constant("i64", self.offset)) if self.offset else self.base)

    def lanes(self, e: Emitter) -> str:
        """The lanes' bases, by one name for each base."""
        return e.spread_once(self.base)

    def plus(self, count: int) -> Where:
        return Where(self.base, self.offset + count)


def address(e: Emitter, operand: str, space: str) -> Where:
    base, offset = parts_of(e, operand)
    if (base.text, space) not in e.places:
        value = e.resize(base, "i64")
        if space == "shared":
            value = e.operation("add", value, Value("%shared_base", "i64", True))
        elif space == "local":
            value = e.operation("add", value, local_base(e))
        e.places[base.text, space] = value
    return Where(e.places[base.text, space], offset)


def bounds(e: Emitter, space: str, site: int) -> tuple[str, str]:
    """Addresses between which an access needs no further look."""
    if space == "shared":
        size = e.assign(f"zext i32 {e.load('i32', e.offset('%context', at.SHARED_BYTES))} to i64")
        return "%shared_base", e.assign(f"add i64 %shared_base, {size}")
    if space == "local":
        low = e.load("i64", e.offset("%frame", at.LOCAL), 8)
        return low, e.assign(f"add i64 {low}, {LANES * e.layout.local_bytes}")
    sites = e.load("ptr", e.offset("%context", at.SITES), 8, ", !invariant.load !0")
    entry = e.offset(sites, at.SITE_BYTES * site)
    return e.load("i64", entry, 8), e.load("i64", e.offset(entry, 8), 8)


def permitted(e: Emitter, i: Instruction, kind: int, space: str, where: Where, size: int) -> tuple[str, str]:
    """The lanes that may access, and what the access functions are told."""
    site = e.site(i, ("load", "store", "atomic")[kind], space, size)
    special = READ_ONLY if i.has("nc") else SUMS if sums_up(i) else ADDS if kind == ATOMIC and i.has("add") else 0
    code = CODES[space] + kind + special
    mask = e.running()
    if not e.instrumented and kind != ATOMIC:
        low, high = bounds(e, space, site)
        return mask, f"i64 {low}, i64 {high}, i32 {site}, i32 {code}, ptr %context, ptr %frame"
    told = f"i64 0, i64 -1, i32 {site}, i32 {code}, ptr %context, ptr %frame"
    wide, wide_address = vector("i1"), vector("i64")
    if kind == ATOMIC:
        e.helpers.add("wt_permit")
        called = f"wt_permit({wide_address} {where.vector(e).text}, {wide} {mask}, {told}, i32 {size})"
    else:
        base = where.lanes(e)
        given = f"{e.shape(where.base, size)}, {wide_address} {base}, {wide} {mask}, i64 {where.offset}"
        called = f"permit_{size}({given}, {told})"
    return e.assign(f"call {wide} @{called}"), told


def load_values(e: Emitter, i: Instruction, space: str, where: Where, type: str, count: int) -> list[Value]:
    size = BYTES["b" + type[1:]] * count
    mask, told = permitted(e, i, LOAD, space, where, size)
    name = f"ld{count}_{type}"
    e.helpers.add(name)
    wide = vector(type)
    result = wide if count == 1 else "{" + ", ".join([wide] * count) + "}"
    base = where.lanes(e)
    addresses = f"{e.shape(where.base, size)}, {vector('i64')} {base}, {vector('i1')} {mask}, i64 {where.offset}"
    text = e.assign(f"call {result} @{name}({addresses}, {told})")
    if count == 1:
        return [Value(text, type)]
    return [Value(e.assign(f"extractvalue {result} {text}, {j}"), type) for j in range(count)]


def store_values(e: Emitter, i: Instruction, space: str, where: Where, values: list[Value]) -> None:
    type = values[0].type
    size = values[0].bits // 8 * len(values)
    mask, told = permitted(e, i, STORE, space, where, size)
    name = f"st{len(values)}_{type}"
    e.helpers.add(name)
    listed = ", ".join(f"{vector(type)} {e.lanes(v)}" for v in values)
    base = where.lanes(e)
    addresses = f"{e.shape(where.base, size)}, {vector('i64')} {base}, {vector('i1')} {mask}, i64 {where.offset}"
    e.emit(f"call void @{name}({addresses}, {told}, {listed})")


def load(e: Emitter, i: Instruction) -> None:
    space, type, count = space_of(i), storage(i.type), count_of(i)
    targets = members(i.operands[0])
    if space == "param":
        parameters = e.load("ptr", "%context", 8, ", !invariant.load !0")
        where = offset_of(e, i.operands[1])
        if not where.uniform:
            raise KeyError(i.text)
        pointer = e.assign(f"getelementptr i8, ptr {parameters}, i64 {where.text}")
        for j, target in enumerate(targets):
            text = e.load(type, e.offset(pointer, j * BYTES[i.type]), 1, ", !invariant.load !0")
            e.put(target, Value(text, type, True), i.type[0] == "s")
        return
    lanes_at = address(e, i.operands[1], space)
    for target, value in zip(targets, load_values(e, i, space, lanes_at, type, count), strict=True):
        e.put(target, value, i.type[0] == "s")


def store(e: Emitter, i: Instruction) -> None:
    space, type = space_of(i), storage(i.type)
    where = address(e, i.operands[0], space)
    store_values(e, i, space, where, [e.value(operand, type) for operand in members(i.operands[1])])


def to_address(e: Emitter, i: Instruction) -> None:
    """`cvta`: between a space's own addresses and generic ones, which are the host's."""
    value = e.value(i.operands[1], "i64")
    space = i.space
    opcode = "sub" if i.has("to") else "add"
    if space == "shared":
        value = e.operation(opcode, value, Value("%shared_base", "i64", True))
    elif space == "local":
        value = e.operation(opcode, value, local_base(e))
    elif space == "param":
        parameters = e.load("i64", "%context", 8, ", !invariant.load !0")
        value = e.operation(opcode, value, Value(parameters, "i64", True))
    e.put(i.operands[0], value)


def is_space(e: Emitter, i: Instruction) -> None:
    value, space = e.value(i.operands[1], "i64"), space_of(i)
    low, high = bounds(e, "shared", 0)
    inside = e.compare(
        "ult",
        e.operation("sub", value, Value(low, "i64", True)),
        Value(e.assign(f"sub i64 {high}, {low}"), "i64", True),
    )
    local_low, local_high = bounds(e, "local", 0)
    own = e.compare(
        "ult",
        e.operation("sub", value, Value(local_low, "i64", True)),
        Value(e.assign(f"sub i64 {local_high}, {local_low}"), "i64", True),
    )
    if space == "global":
        inside = e.operation("xor", e.operation("or", inside, own), e.constant("i1", 1))
    elif space == "local":
        inside = own
    elif space != "shared":
        raise KeyError(space)
    e.put(i.operands[0], inside)


def atomic(e: Emitter, i: Instruction) -> None:
    reduction = i.name == "red"
    space = space_of(i)
    operation = next(part for part in i.opcode if part in OPERATIONS)
    operands = list(i.operands) if reduction else list(i.operands[1:])
    size = BYTES[i.type] * count_of(i)
    if count_of(i) > 1 or i.type == "b128":
        raise KeyError(i.text)
    where = address(e, operands[0], space)
    mask, _ = permitted(e, i, ATOMIC, space, where, size)
    type = f"i{8 * size}"
    wide = vector(type)
    first = e.value(operands[1], type)
    second = e.value(operands[2], type) if operation == "cas" else first
    areas = [e.offset("%scratch", 256 * k) for k in range(4)]
    e.store(vector("i64"), where.vector(e).text, areas[0], 64)
    e.store(wide, e.lanes(first), areas[1], 64)
    e.store(wide, e.lanes(second), areas[2], 64)
    e.store(wide, "zeroinitializer", areas[3], 64)
    bits = e.mask_bits(mask).text
    code = OPERATIONS.index(operation)
    kinds = ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "u16")
    kind = kinds.index(i.type.replace("b", "u", 1) if re.fullmatch(r"b\d+", i.type) else i.type)
    e.declared["wt_atomic"] = "declare void @wt_atomic(i32, i32, i32, ptr, ptr, ptr, ptr, ptr)"
    e.emit(
        f"call void @wt_atomic(i32 {code}, i32 {kind}, i32 {bits}, ptr {areas[0]}, ptr {areas[1]}, ptr {areas[2]}, "
        f"ptr {areas[3]}, ptr %context)"
    )
    if not reduction:
        e.put(i.operands[0], Value(e.load(wide, areas[3], 64), type))


def copy_async(e: Emitter, i: Instruction) -> None:
    """`cp.async`: done at once, which is a legal order."""
    if any(i.has(word) for word in ("commit_group", "wait_group", "wait_all")):
        _copies_end(e, i)
        return
    if i.has("bulk") or not i.has("async") or len(i.operands) > 4:
        raise KeyError(i.text)
    size = int(i.operands[2])
    target, origin = address(e, i.operands[0], "shared"), address(e, i.operands[1], "global")
    if len(i.operands) == 4:
        _copy_part(e, i, target, origin, size)
    else:
        store_values(e, i, "shared", target, load_values(e, i, "global", origin, "i32", size // 4))
    if e.instrumented:
        area = e.offset("%scratch", 0)
        e.store(vector("i64"), target.vector(e).text, area, 64)
        e.declared["wt_copy"] = "declare void @wt_copy(ptr, i32, i32, ptr, ptr)"
        bits = e.mask_bits(e.running()).text
        e.emit(f"call void @wt_copy(ptr {area}, i32 {bits}, i32 {size}, ptr %context, ptr %frame)")


def _copies_end(e: Emitter, i: Instruction) -> None:
    """The checks know which copies a thread has waited for."""
    if not e.instrumented:
        return
    left = 0 if i.has("wait_all") else int(i.operands[0], 0) if i.has("wait_group") else -1
    commits = int(not i.has("wait_group"))
    e.declared["wt_groups_of_copies"] = "declare void @wt_groups_of_copies(i32, i32, i32, ptr, ptr)"
    bits = e.mask_bits(e.running()).text
    e.emit(f"call void @wt_groups_of_copies(i32 {bits}, i32 {commits}, i32 {left}, ptr %context, ptr %frame)")


def _copy_part(e: Emitter, i: Instruction, target: Where, origin: Where, size: int) -> None:
    """The first bytes come from memory, the rest are zero; the fourth operand is their number (or says: none)."""
    given = i.operands[3]
    zero = e.constant("i32", 0)
    if given in e.graph.registers and e.graph.registers[given] == "pred":
        present = e.select(e.value(given, "i1"), zero, e.constant("i32", size))
    else:
        present = e.value(given, "i32")
    values = []
    outer = e.mask
    for word in range(size // 4):
        here = e.compare("ugt", present, e.constant("i32", 4 * word))
        chosen = e.lanes(here)
        e.mask = chosen if outer is None else e.assign(f"and {vector('i1')} {chosen}, {outer}")
        loaded = load_values(e, i, "global", origin.plus(4 * word), "i32", 1)[0]
        for count in (1, 2, 3):  # of the last word as many bytes as there are
            last = e.compare("eq", present, e.constant("i32", 4 * word + count))
            part = e.operation("and", loaded, e.constant("i32", (1 << 8 * count) - 1))
            loaded = e.select(last, part, loaded)
        values.append(e.select(Value(e.mask, "i1"), loaded, zero))
    e.mask = outer
    store_values(e, i, "shared", target, values)


def nothing(e: Emitter, i: Instruction) -> None:
    """Orders memory, or hints: one thread of the host runs all of it in order."""
