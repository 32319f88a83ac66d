"""What lanes of a warp tell each other, and barriers."""

from __future__ import annotations

from windtunnel.ptx import layout as at
from windtunnel.ptx.emitter import INTEGER, Emitter
from windtunnel.ptx.meeting import collective
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import LANES, Value, lanes, vector

SHUFFLES = ("up", "down", "bfly", "idx")
REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def members_of(e: Emitter, i: Instruction, operand: str) -> Value:
    """The lanes that the instruction names, checked against those that are here."""
    named = e.value(operand, "i32")
    memory = int(i.name in ("bar", "barrier"))  # no other one orders what lanes do to memory
    if e.mode == at.WHOLE and e.mask is None and named.text == "-1":
        if e.instrumented:
            e.declared["wt_met"] = "declare void @wt_met(i32, ptr, ptr)"
            e.emit(f"call void @wt_met(i32 {memory}, ptr %context, ptr %frame)")
        return named
    bits = e.mask_bits(e.running())
    site = e.site(i, "warp", "", 0)
    area = e.offset("%scratch", 0)
    e.store(vector("i32"), e.lanes(named), area, 64)
    e.declared["wt_meet"] = "declare void @wt_meet(ptr, i32, i32, i32, ptr, ptr)"
    if e.instrumented or e.mode == at.PARTIAL:
        e.emit(f"call void @wt_meet(ptr {area}, i32 {bits.text}, i32 {site}, i32 {memory}, ptr %context, ptr %frame)")
    return named


def _in_branches(e: Emitter, i: Instruction) -> bool:
    """Whether lanes of other branches may have met those that run."""
    return e.mode == at.PARTIAL and e.graph.apart and collective(i)


def offer(e: Emitter, i: Instruction) -> Value | None:
    """What the lanes bring to an instruction, in 64 bits."""
    if i.name == "elect":
        return None
    type = "i1" if i.name == "vote" else "i64" if i.type == "b64" else "i32"
    value = e.spread(e.value(i.operands[1], type))
    return value if type == "i64" else e.convert("zext", value, "i64")


def brought(e: Emitter, i: Instruction, type: str) -> Value:
    """The lanes' values, those of other branches among them."""
    if not _in_branches(e, i):
        return e.value(i.operands[1], type)
    values = Value(e.load(vector("i64"), e.offset("%frame", at.OFFERED), 8), "i64")
    return e.compare("ne", values, e.constant("i64", 0)) if type == "i1" else e.resize(values, type)


def present(e: Emitter, i: Instruction) -> Value:
    """Bits of the lanes that take part."""
    if _in_branches(e, i):
        return Value(e.load("i32", e.offset("%frame", at.TOGETHER)), "i32", True)
    return e.mask_bits(e.running())


def _permute(e: Emitter, value: Value, index: Value) -> Value:
    area = e.offset("%scratch", 0)
    wide = vector(value.type)
    e.store(wide, e.lanes(value), area, 64)
    indices = f"{vector('i32')} {e.lanes(index)}"
    pointers = e.assign(f"getelementptr {value.type}, ptr {area}, {indices}")
    name = f"llvm.masked.gather.v{LANES}{value.type}.v{LANES}p0"
    e.declared[name] = f"declare {wide} @{name}(<{LANES} x ptr>, <{LANES} x i1>, {wide})"
    mask = f"<{LANES} x i1> splat (i1 true), {wide} poison"
    return Value(e.assign(f"call {wide} @{name}(<{LANES} x ptr> align 4 {pointers}, {mask})"), value.type)


def shuffle(e: Emitter, i: Instruction) -> None:
    named = members_of(e, i, i.operands[4]) if i.has("sync") else None
    targets = [target.strip() for target in i.operands[0].split("|")]
    value = e.spread(brought(e, i, "i32") if _in_branches(e, i) else e.bits(i.operands[1]))
    mode = next(word for word in i.opcode if word in SHUFFLES)
    if e.mode == at.PARTIAL:  # what a lane has that does not take part is undefined: all ones show, and are no number
        here = Value(e.mask_of(present(e, i)), "i1")
        value = e.select(here, value, e.constant("i32", -1))
    if INTEGER.match(i.operands[2]) and INTEGER.match(i.operands[3]):
        result, inside, source = _known_shuffle(e, mode, value, int(i.operands[2], 0), int(i.operands[3], 0))
    else:
        amount, control = (e.value(operand, "i32") for operand in i.operands[2:4])
        result, inside, source = _computed_shuffle(e, mode, value, amount, control)
    if e.instrumented and named is not None and (e.mode == at.PARTIAL or named.text != "-1"):
        result = _of_absent(e, i, named, source, result)
    e.put(targets[0], result)
    if len(targets) > 1:
        e.put(targets[1], inside)


def _of_absent(e: Emitter, i: Instruction, named: Value, source: Value, result: Value) -> Value:
    """The result, with what the launch chooses in place of what is undefined, to see whether it matters."""
    one, lane = e.constant("i32", 1), Value(lanes("i32", list(range(LANES))), "i32")
    given = e.operation("and", e.operation("lshr", e.operation("and", present(e, i), named), source), one)
    absent = e.operation("and", e.compare("eq", given, e.constant("i32", 0)), e.compare("ne", source, lane))
    absent = e.operation("and", absent, Value(e.running(), "i1"))
    area, site = e.offset("%scratch", 0), e.site(i, "warp", "", 0)
    e.store(vector("i32"), e.lanes(source), area, 64)
    e.declared["wt_absent"] = "declare i32 @wt_absent(i32, ptr, i32, ptr, ptr)"
    bits = e.mask_bits(e.lanes(absent)).text
    chosen = e.assign(f"call i32 @wt_absent(i32 {bits}, ptr {area}, i32 {site}, ptr %context, ptr %frame)")
    chosen_value = Value(chosen, "i32", True)
    other = e.operation("and", absent, e.compare("ne", chosen_value, e.constant("i32", 0)))
    zeros = e.compare("eq", chosen_value, one)
    return e.select(other, e.select(zeros, e.constant("i32", 0), chosen_value), result)


def _known_shuffle(e: Emitter, mode: str, value: Value, amount: int, control: int) -> tuple[Value, Value, Value]:
    clamp, segment, amount = control & 31, control >> 8 & 31, amount & 31
    picked, inside = [], []
    for lane in range(LANES):
        lowest = lane & segment
        highest = lowest | (clamp & ~segment & 31)
        wanted = {
            "up": lane - amount,
            "down": lane + amount,
            "bfly": lane ^ amount,
            "idx": lowest | (amount & ~segment & 31),
        }[mode]
        good = wanted >= highest if mode == "up" else wanted <= highest
        inside.append(int(good))
        picked.append(wanted if good else lane)
    wide = vector("i32")
    text = e.assign(f"shufflevector {wide} {value.text}, {wide} poison, {wide} {lanes('i32', picked)}")
    return Value(text, "i32"), Value(lanes("i1", inside), "i1"), Value(lanes("i32", picked), "i32")


def _computed_shuffle(e: Emitter, mode: str, value: Value, amount: Value, control: Value) -> tuple[Value, Value, Value]:
    last = e.constant("i32", 31)
    lane = Value(lanes("i32", list(range(LANES))), "i32")
    amount = e.operation("and", amount, last)
    clamp = e.operation("and", control, last)
    segment = e.operation("and", e.operation("lshr", control, e.constant("i32", 8)), last)
    outside = e.operation("xor", segment, last)
    lowest = e.operation("and", segment, lane)
    highest = e.operation("or", lowest, e.operation("and", clamp, outside))
    if mode == "idx":
        wanted = e.operation("or", lowest, e.operation("and", amount, outside))
    else:
        wanted = e.operation({"up": "sub", "down": "add", "bfly": "xor"}[mode], lane, amount)
    inside = e.compare("sge" if mode == "up" else "sle", wanted, highest)
    source = e.select(inside, wanted, lane)
    return _permute(e, value, source), inside, source


def _lanes_with(e: Emitter, i: Instruction, predicate: Value, named: Value | None) -> tuple[Value, Value]:
    """Bits of the lanes that take part, and of those among them whose predicate holds."""
    taking = present(e, i)
    if named is not None:
        taking = e.operation("and", taking, named)
    holds = e.mask_bits(e.lanes(predicate))
    return taking, e.operation("and", holds, taking)


def _lowest(e: Emitter, bits: Value) -> Value:
    e.declared["llvm.cttz.v32i32"] = "declare <32 x i32> @llvm.cttz.v32i32(<32 x i32>, i1)"
    return Value(e.assign(f"call <32 x i32> @llvm.cttz.v32i32(<32 x i32> {e.lanes(bits)}, i1 false)"), "i32")


def _mask_scalar(e: Emitter, named: Value) -> Value:
    """The member mask of the lanes that run: the first one's."""
    if named.uniform:
        return named
    bits = e.mask_bits(e.running())
    e.declared["llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    first = e.assign(f"call i32 @llvm.cttz.i32(i32 {bits.text}, i1 false)")
    first = e.assign(f"and i32 {first}, 31")
    return Value(e.assign(f"extractelement {vector('i32')} {named.text}, i32 {first}"), "i32", True)


def vote(e: Emitter, i: Instruction) -> None:
    named = members_of(e, i, i.operands[2]) if i.has("sync") else None
    predicate = brought(e, i, "i1")
    taking, holds = _lanes_with(e, i, predicate, named)
    if i.has("ballot"):
        e.put(i.operands[0], holds)
    elif i.has("any"):
        e.put(i.operands[0], e.compare("ne", holds, e.constant("i32", 0)))
    elif i.has("all"):
        e.put(i.operands[0], e.compare("eq", holds, taking))
    else:
        none = e.compare("eq", holds, e.constant("i32", 0))
        e.put(i.operands[0], e.operation("or", none, e.compare("eq", holds, taking)))


def match(e: Emitter, i: Instruction) -> None:
    """`match.any` and `match.all`: the lanes that hold the same value."""
    named = members_of(e, i, i.operands[2])
    type = "i64" if i.type == "b64" else "i32"
    areas = [e.offset("%scratch", 256 * (k + 1)) for k in range(3)]
    value = e.resize(brought(e, i, type), "i64")
    e.store(vector("i64"), e.lanes(value), areas[0], 64)
    e.store(vector("i32"), e.lanes(named), areas[1], 64)
    bits = present(e, i)
    e.declared["wt_match"] = "declare void @wt_match(ptr, ptr, i32, i32, ptr)"
    e.emit(
        f"call void @wt_match(ptr {areas[0]}, ptr {areas[1]}, i32 {bits.text}, i32 {int(i.has('all'))}, ptr {areas[2]})"
    )
    result = Value(e.load(vector("i32"), areas[2], 64), "i32")
    targets = [target.strip() for target in i.operands[0].split("|")]
    e.put(targets[0], result)
    if len(targets) > 1:
        e.put(targets[1], e.compare("ne", result, e.constant("i32", 0)))


def reduce(e: Emitter, i: Instruction) -> None:
    """`redux.sync`."""
    named = members_of(e, i, i.operands[2])
    value = brought(e, i, "i32")
    areas = [e.offset("%scratch", 256 * (k + 1)) for k in range(3)]
    e.store(vector("i32"), e.lanes(value), areas[0], 64)
    e.store(vector("i32"), e.lanes(named), areas[1], 64)
    operation = REDUCTIONS.index(i.opcode[2])
    e.declared["wt_redux"] = "declare void @wt_redux(ptr, ptr, i32, i32, i32, ptr)"
    e.emit(
        f"call void @wt_redux(ptr {areas[0]}, ptr {areas[1]}, i32 {present(e, i).text}, i32 {operation}, "
        f"i32 {int(i.type == 's32')}, ptr {areas[2]})"
    )
    e.put(i.operands[0], Value(e.load(vector("i32"), areas[2], 64), "i32"))


def active(e: Emitter, i: Instruction) -> None:
    e.put(i.operands[0], e.mask_bits(e.running()))


def elect(e: Emitter, i: Instruction) -> None:
    first = _lowest(e, members_of(e, i, i.operands[1]))
    targets = [target.strip() for target in i.operands[0].split("|")]
    e.put(targets[0], first)
    lane = Value(lanes("i32", list(range(LANES))), "i32")
    e.put(targets[1], e.compare("eq", lane, first))


def barrier(e: Emitter, i: Instruction) -> None:
    """`bar.sync` and its like: what the warp waits for is left in its frame; the scheduler does the rest."""
    if i.has("warp"):
        members_of(e, i, i.operands[0])
        return
    operands = list(i.operands)
    if i.has("red"):
        _vote(e, operands.pop())
    site = e.site(i, "barrier", "", 0)
    number = e.value(operands[0], "i32") if operands else e.constant("i32", at.WHOLE_GRID if i.has("grid") else 0)
    threads = e.value(operands[1], "i32") if len(operands) > 1 else e.constant("i32", 0)
    if not number.uniform:
        number = _mask_scalar(e, number)
    if not threads.uniform:
        threads = _mask_scalar(e, threads)
    if operands:
        number = e.operation("and", number, e.constant("i32", 15))
    if i.has("arrive"):  # the thread count is for those that wait
        e.declared["wt_bar_arrive"] = "declare void @wt_bar_arrive(i32, ptr, ptr)"
        e.emit(f"call void @wt_bar_arrive(i32 {number.text}, ptr %context, ptr %frame)")
        return
    e.store("i32", number.text, e.offset("%frame", at.BARRIER))
    e.store("i32", threads.text, e.offset("%frame", at.BARRIER_THREADS))
    if e.mode == at.WHOLE:
        e.store("i32", str(site), e.offset("%frame", at.BARRIER_SITE))
        return
    e.declared["wt_arrive"] = "declare void @wt_arrive(i32, i32, ptr, ptr)"
    bits = e.mask_bits(e.running()).text
    e.emit(f"call void @wt_arrive(i32 {bits}, i32 {site}, ptr %context, ptr %frame)")


def _vote(e: Emitter, predicate: str) -> None:
    """Leaves the lanes' predicates in the frame, where lanes that arrive apart add theirs."""
    here = e.mask_bits(e.running())
    holds = e.operation("and", e.mask_bits(e.lanes(e.value(predicate, "i1"))), here)
    place = e.offset("%frame", at.VOTE)
    others = e.operation(
        "and", Value(e.load("i32", place), "i32", True), e.operation("xor", here, e.constant("i32", -1))
    )
    e.store("i32", e.operation("or", others, holds).text, place)


def collect(e: Emitter, i: Instruction) -> None:
    """What `bar.red` gives, behind the barrier."""
    if i.has("popc"):
        e.put(i.operands[0], Value(e.load("i32", e.offset("%frame", at.VOTES)), "i32", True))
        return
    agreement = Value(e.load("i32", e.offset("%frame", at.AGREEMENT)), "i32", True)
    bit = e.operation("and", agreement, e.constant("i32", 1 if i.has("and") else 2))
    e.put(i.operands[0], e.compare("ne", bit, e.constant("i32", 0)))


def trap(e: Emitter, i: Instruction) -> None:
    e.declared["wt_trap"] = "declare void @wt_trap(i32, i32, ptr, ptr)"
    site = e.site(i, "trap", "", 0)
    bits = e.mask_bits(e.running()).text
    e.emit(f"call void @wt_trap(i32 {bits}, i32 {site}, ptr %context, ptr %frame)")
