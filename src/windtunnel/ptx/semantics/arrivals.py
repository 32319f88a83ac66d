"""`mbarrier`, barriers that are objects in shared memory (cuda::barrier, cuda::pipeline), and the bulk copies that
arrive at them.

A word holds the arrivals that its phase still waits for (20 bits), how many a phase takes (20), the bytes of copies
that it waits for (22, with a sign) and the phase's parity (the top bit). PTX leaves open what is in it. A phase that
ends orders what threads did before it."""

from __future__ import annotations

from windtunnel.ptx.emitter import Emitter
from windtunnel.ptx.semantics import memory
from windtunnel.ptx.semantics.memory import ATOMIC, CODES, LOAD, STORE, Where
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import Value, vector

OPERATIONS = ("init", "inval", "arrive", "arrive_drop", "test_wait", "parity", "expect_tx", "complete_tx")
WAITS = ("test_wait", "try_wait")
WITHOUT_RESULT = ("init", "inval", "expect_tx", "complete_tx")
SIZE, PENDING = 8, (1 << 20) - 1
PART = 16
"""Bytes of a bulk copy that are one lane's in what is checked and counted."""
LANES_OF_64 = vector("i64")


def barrier_object(e: Emitter, i: Instruction) -> None:
    """An operation on one, which all lanes carry out one after another."""
    operation = i.name.partition(".")[2]
    if operation == "pending_count":
        pending = e.operation("and", e.value(i.operands[1], "i64"), e.constant("i64", PENDING))
        e.put(i.operands[0], e.resize(pending, "i32"))
        return
    result, operands = ("_", i.operands) if operation in WITHOUT_RESULT else (i.operands[0], i.operands[1:])
    given = e.constant("i64", 1)
    if operation in WAITS and not i.has("parity"):
        given = e.value(operands[1], "i64")
    elif len(operands) > 1:
        given = e.resize(e.value(operands[1], "i32"), "i64")
    if operation == "arrive" and i.has("expect_tx"):
        _asked(e, i, operands[0], "expect_tx", given)
        given = e.constant("i64", 1)
    if operation in WAITS:
        operation = "parity" if i.has("parity") else "test_wait"
    found = _asked(e, i, operands[0], operation, given)
    if result != "_":
        e.put(result, e.compare("ne", found, e.constant("i64", 0)) if operation in ("parity", "test_wait") else found)


def copies_arrive(e: Emitter, i: Instruction) -> None:
    """`cp.async.mbarrier.arrive`: the thread's copies so far, which are done, arrive; of their own account, if
    `noinc`."""
    if e.instrumented:
        e.declared["wt_groups_of_copies"] = "declare void @wt_groups_of_copies(i32, i32, i32, ptr, ptr)"
        bits = e.mask_bits(e.running()).text
        e.emit(f"call void @wt_groups_of_copies(i32 {bits}, i32 1, i32 0, ptr %context, ptr %frame)")
    if i.has("noinc"):
        _asked(e, i, i.operands[0], "arrive", e.constant("i64", 1))


def copy_bulk(e: Emitter, i: Instruction) -> None:
    """`cp.async.bulk`: done at once, which is a legal order; groups of such copies are always complete."""
    if i.has("commit_group") or i.has("wait_group"):
        return
    into_global = i.opcode[1] == "global"
    spaces = ("global", "shared") if into_global else ("shared", "global")
    places = [memory.address(e, operand, space) for operand, space in zip(i.operands, spaces, strict=False)]
    sites = [e.site(i, kind, space, PART) for kind, space in zip(("store", "load"), spaces, strict=True)]
    codes = [CODES[spaces[0]] + STORE, CODES[spaces[1]] + LOAD]
    areas = [e.offset("%scratch", 256 * k) for k in range(3)]
    for area, place in zip(areas, places, strict=False):
        e.store(LANES_OF_64, place.vector(e).text, area, 64)
    e.store(LANES_OF_64, e.lanes(e.resize(e.value(i.operands[2], "i32"), "i64")), areas[2], 64)
    e.declared["wt_bulk"] = "declare void @wt_bulk(i32, ptr, ptr, ptr, i32, i32, i32, i32, ptr, ptr)"
    e.emit(
        f"call void @wt_bulk(i32 {e.mask_bits(e.running()).text}, ptr {areas[0]}, ptr {areas[1]}, ptr {areas[2]}, "
        f"i32 {codes[0]}, i32 {codes[1]}, i32 {sites[0]}, i32 {sites[1]}, ptr %context, ptr %frame)"
    )
    if not into_global:
        _asked(e, i, i.operands[3], "complete_tx", e.resize(e.value(i.operands[2], "i32"), "i64"))


def _asked(e: Emitter, i: Instruction, operand: str, operation: str, given: Value) -> Value:
    space = "generic" if i.space == "generic" else "shared"
    where = memory.address(e, operand, space)
    mask = _permitted(e, i, STORE if operation == "init" else ATOMIC, space, where)
    areas = [e.offset("%scratch", 256 * k) for k in range(3)]
    e.store(LANES_OF_64, where.vector(e).text, areas[0], 64)
    e.store(LANES_OF_64, e.lanes(given), areas[1], 64)
    e.store(LANES_OF_64, "zeroinitializer", areas[2], 64)
    e.declared["wt_mbarrier"] = "declare void @wt_mbarrier(i32, i32, ptr, ptr, ptr, ptr, ptr)"
    e.emit(
        f"call void @wt_mbarrier(i32 {OPERATIONS.index(operation)}, i32 {e.mask_bits(mask).text}, ptr {areas[0]}, "
        f"ptr {areas[1]}, ptr {areas[2]}, ptr %context, ptr %frame)"
    )
    return Value(e.load(LANES_OF_64, areas[2], 64), "i64")


def _permitted(e: Emitter, i: Instruction, kind: int, space: str, where: Where) -> str:
    """The lanes whose barrier is there."""
    site = e.site(i, ("load", "store", "atomic")[kind], space, SIZE)
    e.helpers.add("wt_permit")
    return e.assign(
        f"call {vector('i1')} @wt_permit({LANES_OF_64} {where.vector(e).text}, {vector('i1')} {e.running()}, i64 0, "
        f"i64 -1, i32 {site}, i32 {CODES[space] + kind}, ptr %context, ptr %frame, i32 {SIZE})"
    )
