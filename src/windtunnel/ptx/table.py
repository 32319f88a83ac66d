"""The instructions that are emulated: one row each.

A row has the name, what it occupies, the section of "Parallel Thread Execution ISA 8.8" that defines it, how it is
emitted, and the modifiers and types that are emulated. Anything else is refused by name and line; there is no
approximation of an instruction by another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.ptx.emitter import Emitter
from windtunnel.ptx.facts import Facts, Kind
from windtunnel.ptx.flow import COLLECT, facts_of
from windtunnel.ptx.semantics import arrivals, compare, convert, floats, integers, matrix, memory, special, warps
from windtunnel.ptx.syntax import Instruction

Emit = Callable[[Emitter, Instruction], None]
INTEGERS = "u16 u32 u64 s16 s32 s64"
BITS = "b16 b32 b64"
FLOATS = "f16 f16x2 bf16 bf16x2 f32 f64"
ROUNDING = "rn rz rm rp ftz sat"
COMPARISONS = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz"
MEMORY = (
    "global shared shared::cta local const param param::entry param::func weak relaxed acquire release "
    "acq_rel volatile nc cta "
    "gpu sys cluster ca cg cs lu cv wb wt v2 v4 b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f16 f32 f64 "
    "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::64B L2::128B "
    "L2::256B unified"
)
ATOMICS = (
    "global shared shared::cta relaxed acquire release acq_rel cta gpu sys add min max and or xor exch "
    "cas inc dec noftz "
    "b16 b32 b64 u32 u64 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64"
)
TENSOR = "sync aligned row col satfinite m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m8n8k4 " + " ".join(matrix.KINDS)


@dataclass(frozen=True)
class Row(Facts):
    emit: Emit = memory.nothing


ROWS: dict[str, Row] = {}


def _row(
    names: str,
    kind: Kind,
    source: str,
    emit: Emit,
    modifiers: str | None,
    *,
    writes: bool = True,
    lanewise: bool = False,
) -> None:
    allowed = None if modifiers is None else frozenset(modifiers.split())
    for name in names.split():
        ROWS[name] = Row(name, kind, source, allowed, writes, lanewise, emit)


def _either(i: Instruction) -> bool:
    """Whether the type is a floating-point one."""
    return i.type in FLOATS.split()


def _two(of_integers: Emit, of_floats: Emit) -> Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        (of_floats if _either(i) else of_integers)(e, i)

    return emit


def _carrying(e: Emitter, i: Instruction) -> None:
    integers.add_with_carry(e, i)


def _lanewise(names: str, kind: Kind, source: str, emit: Emit, modifiers: str) -> None:
    _row(names, kind, source, emit, modifiers, lanewise=True)


def _arithmetic() -> None:
    both = f"{INTEGERS} {FLOATS} {ROUNDING} cc relu noftz"
    _lanewise("add sub", Kind.FLOAT, "9.7.1.1, 9.7.3.3, 9.7.4.1", _two(integers.add_subtract, floats.elementwise), both)
    _lanewise("mul", Kind.FLOAT, "9.7.1.3, 9.7.3.5", _two(integers.multiply, floats.elementwise), both + " hi lo wide")
    _lanewise(
        "mad", Kind.FLOAT, "9.7.1.4, 9.7.3.7", _two(integers.multiply_add, floats.elementwise), both + " hi lo wide"
    )
    _lanewise("fma", Kind.FLOAT, "9.7.3.6, 9.7.4.4", floats.elementwise, f"{FLOATS} {ROUNDING} relu noftz")
    _lanewise("div", Kind.FLOAT, "9.7.1.8, 9.7.3.8", _two(integers.divide, special.divide), both + " approx full")
    _lanewise("rem", Kind.INTEGER, "9.7.1.9", integers.divide, INTEGERS)
    _lanewise("min max", Kind.FLOAT, "9.7.1.12, 9.7.3.11", _two(integers.minimum, floats.elementwise), f"{both} NaN")
    _lanewise("abs", Kind.FLOAT, "9.7.1.10, 9.7.3.9", _two(integers.absolute, floats.elementwise), both)
    _lanewise("neg", Kind.FLOAT, "9.7.1.11, 9.7.3.10", _two(integers.negate, floats.elementwise), both)
    _row("addc subc", Kind.INTEGER, "9.7.2", _carrying, "cc u32 s32 u64 s64")
    _row("madc", Kind.INTEGER, "9.7.2.6", _carrying, "cc lo hi u32 s32 u64 s64")
    _lanewise("mul24", Kind.INTEGER, "9.7.1.5", integers.multiply_24, "hi lo u32 s32")
    _lanewise("mad24", Kind.INTEGER, "9.7.1.6", integers.multiply_24, "hi lo u32 s32")
    _lanewise("sad", Kind.INTEGER, "9.7.1.7", integers.sum_of_differences, INTEGERS)
    _lanewise("dp4a dp2a", Kind.INTEGER, "9.7.1.23", integers.dot_product, "lo hi u32 s32")
    _lanewise("copysign", Kind.FLOAT, "9.7.3.2", floats.copy_sign, "f32 f64")
    _lanewise("testp", Kind.FLOAT, "9.7.3.1", floats.test_property,
              "finite infinite number notanumber normal subnormal f32 f64")  # fmt: skip
    _lanewise("rcp sqrt rsqrt", Kind.SPECIAL, "9.7.3.13 to 9.7.3.17", special.unary, f"approx {ROUNDING} f32 f64")
    _lanewise("ex2 tanh", Kind.SPECIAL, "9.7.3.21, 9.7.4.13", special.unary, f"approx ftz {FLOATS}")
    _lanewise("lg2 sin cos", Kind.SPECIAL, "9.7.3.18 to 9.7.3.20", special.unary, "approx ftz f32")


def _bits() -> None:
    _lanewise("and or xor", Kind.INTEGER, "9.7.8.1", integers.logic, f"pred {BITS}")
    _lanewise("not", Kind.INTEGER, "9.7.8.4", integers.complement, f"pred {BITS}")
    _lanewise("cnot", Kind.INTEGER, "9.7.8.5", integers.logical_not, BITS)
    _lanewise("lop3", Kind.INTEGER, "9.7.8.6", integers.lookup, "b32")
    _lanewise("shf", Kind.INTEGER, "9.7.8.7", integers.funnel_shift, "l r wrap clamp b32")
    _lanewise("shl shr", Kind.INTEGER, "9.7.8.8", integers.shift, f"{BITS} {INTEGERS}")
    _lanewise("popc clz", Kind.INTEGER, "9.7.1.13", integers.count_bits, "b32 b64")
    _lanewise("bfind", Kind.INTEGER, "9.7.1.16", integers.find_bit, "shiftamt u32 u64 s32 s64")
    _lanewise("brev", Kind.INTEGER, "9.7.1.18", integers.reverse_bits, "b32 b64")
    _lanewise("bfe", Kind.INTEGER, "9.7.1.19", integers.extract_field, "u32 u64 s32 s64")
    _lanewise("bfi", Kind.INTEGER, "9.7.1.20", integers.insert_field, "b32 b64")
    _lanewise("bmsk", Kind.INTEGER, "9.7.1.22", integers.make_mask, "wrap clamp b32")
    _lanewise("prmt", Kind.INTEGER, "9.7.9.7", integers.permute, "b32 f4e b4e rc8 ecl ecr rc16")


def _moves() -> None:
    _row("setp", Kind.INTEGER, "9.7.6.2", compare.set_predicate, f"{COMPARISONS} {BITS} {INTEGERS} {FLOATS}")
    ROWS["setp"] = Row(**{**vars(ROWS["setp"]), "lanewise": True})
    _lanewise("set", Kind.INTEGER, "9.7.6.1", compare.set_number, f"{COMPARISONS} {BITS} {INTEGERS} {FLOATS}")
    _lanewise("selp", Kind.INTEGER, "9.7.6.3", compare.select, f"{BITS} {INTEGERS} f32 f64")
    _lanewise("slct", Kind.INTEGER, "9.7.6.4", compare.select_by_sign, f"{BITS} {INTEGERS} f32 f64 ftz")
    _lanewise("mov", Kind.MOVE, "9.7.9.3", compare.move, f"pred {BITS} b128 {INTEGERS} f16 bf16 f32 f64")
    _lanewise(
        "cvta", Kind.MOVE, "9.7.9.20", memory.to_address, "to global shared shared::cta local const param u32 u64"
    )
    _row("isspacep", Kind.INTEGER, "9.7.9.19", memory.is_space, "global shared local shared::cta")
    _row("cvt", Kind.CONVERT, "9.7.9.21", _conversion, None, lanewise=True)


def _conversion(e: Emitter, i: Instruction) -> None:
    known = [
        "rn",
        "rz",
        "rm",
        "rp",
        "rni",
        "rzi",
        "rmi",
        "rpi",
        "rna",
        "ftz",
        "sat",
        "satfinite",
        "relu",
        "pack",
        "u8",
        "s8",
        "u16",
        "s16",
        "u32",
        "s32",
        "u64",
        "s64",
        "f16",
        "bf16",
        "f32",
        "f64",
        "f16x2",
        "bf16x2",
        "tf32",
        "e4m3x2",
        "e5m2x2",
        "e2m1x2",
        "e2m3x2",
        "e3m2x2",
        *("rs", "e4m3x4", "e5m2x4", "e2m1x4", "e2m3x4", "e3m2x4"),
        "ue8m0x2",
        "b32",
    ]
    if any(part not in known for part in i.opcode[1:]):
        raise KeyError(i.text)
    (convert.pack_integers if i.has("pack") else convert.convert)(e, i)


def _memory() -> None:
    _row("ld ldu", Kind.MEMORY, "9.7.9.8, 9.7.9.10", memory.load, MEMORY)
    _row("st", Kind.MEMORY, "9.7.9.11", memory.store, MEMORY, writes=False)
    _row("atom", Kind.ATOMIC, "9.7.13.4", memory.atomic, ATOMICS)
    _row("red", Kind.ATOMIC, "9.7.13.5", memory.atomic, ATOMICS, writes=False)
    _row("cp", Kind.MEMORY, "9.7.9.25.3", memory.copy_async,
         "async ca cg shared shared::cta global commit_group wait_group wait_all L2::64B L2::128B L2::256B",
         writes=False)  # fmt: skip
    _row("cp.async.mbarrier", Kind.ATOMIC, "9.7.13.16.17", arrivals.copies_arrive,
         "arrive noinc shared shared::cta b64", writes=False)  # fmt: skip
    _row("cp.async.bulk", Kind.MEMORY, "9.7.9.25.4", arrivals.copy_bulk,
         "shared::cta shared::cluster global mbarrier::complete_tx::bytes bulk_group commit_group wait_group read",
         writes=False)  # fmt: skip
    _row("mbarrier.init mbarrier.inval mbarrier.expect_tx mbarrier.complete_tx", Kind.ATOMIC, "9.7.13.16.9",
         arrivals.barrier_object, "relaxed cta shared shared::cta b64", writes=False)  # fmt: skip
    _row("mbarrier.arrive mbarrier.arrive_drop mbarrier.test_wait mbarrier.try_wait mbarrier.pending_count",
         Kind.ATOMIC, "9.7.13.16.13", arrivals.barrier_object,
         "noComplete expect_tx parity release acquire relaxed cta shared shared::cta b64")  # fmt: skip
    _row("prefetch prefetchu applypriority discard", Kind.FENCE, "9.7.9.15", memory.nothing, None, writes=False)
    _row("membar fence", Kind.FENCE, "9.7.13.3", memory.nothing,
         "cta gl gpu sys sc acq_rel cluster proxy async global shared::cta mbarrier_init release",
         writes=False)  # fmt: skip
    _row("nanosleep pmevent griddepcontrol", Kind.FENCE, "9.7.19.2", memory.nothing, None, writes=False)


def _threads() -> None:
    _row("shfl", Kind.WARP, "9.7.9.6", warps.shuffle, "sync up down bfly idx b32")
    _row("vote", Kind.WARP, "9.7.13.7", warps.vote, "sync all any uni ballot pred b32")
    _row("match", Kind.WARP, "9.7.13.8", warps.match, "any all sync b32 b64")
    _row("redux", Kind.WARP, "9.7.13.10", warps.reduce, "sync add min max and or xor u32 s32 b32")
    _row("activemask", Kind.MOVE, "9.7.13.9", warps.active, "b32")
    _row("elect", Kind.WARP, "9.7.13.15", warps.elect, "sync")
    _row(
        "bar barrier",
        Kind.BARRIER,
        "9.7.13.1",
        warps.barrier,
        "sync arrive warp aligned cta grid red popc and or u32 pred",
        writes=False,
    )
    _row(COLLECT, Kind.MOVE, "9.7.13.1", warps.collect, None)
    _row(
        "ldmatrix",
        Kind.MEMORY,
        "9.7.14.5.15",
        matrix.load_matrix,
        "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16",
    )
    _row("mma", Kind.TENSOR, "9.7.14.5", matrix.multiply, TENSOR)
    _row("bra", Kind.CONTROL, "9.7.12.3", memory.nothing, "uni", writes=False)
    _row("ret exit", Kind.CONTROL, "9.7.12.6", memory.nothing, "uni", writes=False)
    _row("trap", Kind.CONTROL, "9.7.19.4", warps.trap, "", writes=False)
    _row("brkpt", Kind.CONTROL, "9.7.19.1", memory.nothing, "", writes=False)
    _row("call", Kind.CALL, "9.7.12.5", special.call, None)


for _part in (_arithmetic, _bits, _moves, _memory, _threads):
    _part()


def emit(e: Emitter, instruction: Instruction) -> None:
    facts_of(ROWS, instruction)
    ROWS[instruction.name].emit(e, instruction)
