"""The state of a function while it is emitted: registers, operands, the mask of the lanes that run."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windtunnel.errors import UnsupportedError
from windtunnel.ptx import layout as at
from windtunnel.ptx.access import SHAPE, known_shape
from windtunnel.ptx.flow import Graph, fences, tells_others, unsupported, written_and_read
from windtunnel.ptx.layout import Layout, register_type
from windtunnel.ptx.line import NONE, Line
from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import LANES, Builder, Value, lanes, vector

INTEGER = re.compile(r"^-?(0[xX][0-9a-fA-F]+|\d+)U?$")
DECIMAL = re.compile(r"^-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?$")
ADDRESS = re.compile(r"\[\s*([\w$%@#~]+)\s*(?:\+?\s*(-?\w+))?\s*\]$")
LLVM_TYPES = {
    **{f"{s}{n}": f"i{n}" for s in "usb" for n in (8, 16, 32, 64)},
    "b128": "i128", "f16": "half", "f32": "float", "f64": "double", "pred": "i1",
    "bf16": "i16", "f16x2": "i32", "bf16x2": "i32", "tf32": "i32",
}  # fmt: skip
FROM_CONTEXT = {
    **{f"%{name}.{axis}": offset + 4 * i
       for name, offset in (("ctaid", at.BLOCK_INDEX), ("nctaid", at.GRID_SIZE), ("ntid", at.BLOCK_SIZE))
       for i, axis in enumerate("xyz")},
    "%dynamic_smem_size": at.DYNAMIC_SHARED, "%total_smem_size": at.SHARED_BYTES,
}  # fmt: skip
LANE_MASKS = {
    "%lanemask_eq": lambda i: 1 << i,
    "%lanemask_lt": lambda i: (1 << i) - 1,
    "%lanemask_le": lambda i: (2 << i) - 1,
    "%lanemask_gt": lambda i: ~((2 << i) - 1),
    "%lanemask_ge": lambda i: ~((1 << i) - 1),
}
FULL = "splat (i1 true)"


@dataclass(frozen=True)
class Site:
    """An instruction that accesses memory."""

    instruction: Instruction
    kind: str
    space: str
    size: int


class Emitter(Builder):
    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        parameters: Mapping[str, int],
        emit_one: Callable[[Emitter, Instruction], None],
        mode: str,
        instrumented: bool,
        sites: dict[Site, int],
    ) -> None:
        super().__init__()
        self.graph, self.layout, self.mode = graph, layout, mode
        self.parameters = parameters
        self.emit_one = emit_one
        self.instrumented = instrumented
        self.sites = sites
        self.base: str | None = None
        """The lanes that run this block, or None: all of them."""
        self.mask: str | None = None
        """Of those, the lanes whose guard holds."""
        self.cached: dict[str, Value] = {}
        self.dirty: set[str] = set()
        self.helpers: set[str] = set()
        self.places: dict[tuple[str, str], Value] = {}
        """The host's addresses of what a base names in a space, as far as this block has made them."""
        self.offsets: dict[str, tuple[int, ...]] = {}
        """What each lane of a vector adds to the first one's number."""
        self._spread: dict[str, str] = {}
        self._shapes: dict[tuple[str, int], str] = {}
        """How addresses lie that were looked at in this block."""

    # Registers

    def home(self, register: str) -> str:
        if self.mode == at.WHOLE:
            return f'%"R.{register}"'
        return self.offset("%frame", self.layout.slots[register])

    def line(self, name: str) -> Line | None:
        """How the lanes' values of a register lie, where all of them are at the same instruction."""
        return self.graph.lines.of.get(name) if self.mode == at.WHOLE else None

    def is_scalar(self, name: str) -> bool:
        """Whether one number is kept of a register, not 32."""
        return name in self.graph.uniform or self.line(name) is not None

    def _register(self, name: str) -> Value:
        if name not in self.cached:
            type, scalar = register_type(self.graph.registers[name]), self.is_scalar(name)
            text = self.load(type if scalar else vector(type), self.home(name), 4 if type == "i1" else 8)
            value = Value(text, type, scalar)
            line = self.line(name)
            self.cached[name] = value if line is None or line.same else self.along(value, line.offsets)
        return self.cached[name]

    def along(self, first: Value, offsets: tuple[int, ...]) -> Value:
        """All lanes, of the first one's number."""
        wide = vector(first.type)
        text = self.assign(f"add {wide} {self.lanes(first)}, {lanes(first.type, list(offsets))}")
        self.firsts[text], self.offsets[text] = first.text, offsets
        return Value(text, first.type)

    def offsets_of(self, value: Value) -> tuple[int, ...] | None:
        """What each lane adds to the first lane's number, if that is known."""
        if value.uniform:
            return NONE
        if value.text in self.made and value.text not in self.offsets:
            opcode, given = self.made[value.text]
            parts = [self.offsets_of(part) for part in given] if opcode.startswith("add ") else [None]
            known = [part for part in parts if part is not None]
            if len(known) == 2:
                self.offsets[value.text] = tuple(map(sum, zip(*known, strict=True)))
        return self.offsets.get(value.text)

    def type_of_register(self, name: str) -> str:
        return register_type(self.graph.registers[name])

    def put(self, name: str, value: Value, signed: bool = False) -> None:
        """Writes a register in the lanes that run."""
        if name == "_":
            return
        if name not in self.graph.registers:
            raise UnsupportedError(f"The PTX register {name} is written but not declared")
        type = register_type(self.graph.registers[name])
        value = self.resize(value, type, signed)
        line = self.line(name)
        if name not in self.graph.uniform and line is None:
            value = self.spread(value)
            if self.mask is not self.base:
                old = self.spread(self._register(name))
                value = self.select(Value(self.mask or FULL, "i1"), value, old)
        elif line is None or line.same:  # computed for each lane, of what all have in common
            value = Value(self.first(value), value.type, True)
        else:
            value = self.spread(value)
            self.offsets[value.text] = line.offsets
        self.cached[name] = value
        self.dirty.add(name)

    def flush(self, live: set[str]) -> None:
        """Stores what the block wrote and later blocks read."""
        for name in sorted(self.dirty & live):
            value = self.cached[name]
            home = self.home(name)
            align = 4 if value.type == "i1" else 8
            if self.line(name) is not None:
                value = Value(self.first(value), value.type, True)
            elif self.base is not None and not value.uniform:
                wide = vector(value.type)
                old = Value(self.load(wide, home, align), value.type)
                value = self.select(Value(self.base, "i1"), value, old)
            self.store(self.type_of(value), value.text, home, align)
        for known in (self.cached, self.dirty, self.made, self.firsts, self.offsets):
            known.clear()

    # Operands

    def value(self, operand: str, type: str) -> Value:
        """The operand as a value of an LLVM type."""
        if operand in self.graph.registers:
            value = self._register(operand)
            if (type == "i1") != (value.type == "i1"):
                raise UnsupportedError(f"A predicate and a number are mixed in the PTX operand {operand}")
            if operand in self.graph.raw and type == "i32":
                real = self.bitcast(value, "float")
                value = self.select(self.compare("uno", real, real), self.constant("i32", 0x7FFFFFFF), value)
            return self.resize(value, type)
        if operand[0] == "!" and type == "i1":
            return self.operation("xor", self.value(operand[1:], "i1"), self.constant("i1", 1))
        if operand[0] == "-" and operand[1:] in self.graph.registers:
            value = self.value(operand[1:], type)
            return self.convert_negated(value)
        if operand[0] == "%":
            return self.resize(self.special(operand), type)
        if operand[:2] in ("0f", "0F"):
            bits = int(operand[2:], 16)
            return self.constant(type, bits)
        if operand[:2] in ("0d", "0D"):
            bits = int(operand[2:], 16)
            if type == "float":
                return self.number(type, struct.unpack("<d", bits.to_bytes(8, "little"))[0])
            return self.constant(type, bits)
        if DECIMAL.match(operand) and type in (
            "half",
            "float",
            "double",
        ):  # ISA 4.5.2: doubles, converted for their use
            return self.number(type, float(operand))
        if INTEGER.match(operand):
            return self.constant(
                type, int(operand.rstrip("U"), 0) if not _octal(operand) else int(operand.rstrip("U"), 8)
            )
        if operand == "WARP_SZ":
            return self.constant(type, LANES)
        return self.resize(self.symbol(operand), type)

    def bits(self, operand: str) -> Value:
        """The operand as 32 bits to hand on, the host's NaN among them."""
        return self._register(operand) if operand in self.graph.raw else self.value(operand, "i32")

    def convert_negated(self, value: Value) -> Value:
        if value.floating:
            return Value(self.assign(f"fneg {self.type_of(value)} {value.text}"), value.type, value.uniform)
        return self.operation("sub", self.constant(value.type, 0), value)

    def symbol(self, name: str) -> Value:
        """The address of a variable in its own space."""
        if "+" in name:
            base, _, offset = name.partition("+")
            return self.operation("add", self.symbol(base), self.constant("i64", int(offset, 0)))
        layout = self.layout
        if name in layout.shared:
            return self.constant("i64", layout.shared[name])
        if name in layout.dynamic:
            return self.constant("i64", layout.shared_bytes)
        if name in layout.local:
            return self.constant("i64", layout.local[name])
        if name in layout.variables:
            table = self.load("ptr", self.offset("%context", at.VARIABLES), 8, ", !invariant.load !0")
            entry = self.offset(table, 8 * layout.variables[name])
            return Value(self.load("i64", entry, 8, ", !invariant.load !0"), "i64", True)
        if name in self.parameters:
            return self.constant("i64", self.parameters[name])
        raise UnsupportedError(f"The kernel names {name}, which its PTX does not define")

    def special(self, name: str) -> Value:
        if name in FROM_CONTEXT:
            return Value(self.load("i32", self.offset("%context", FROM_CONTEXT[name]), 4), "i32", True)
        if name[:-1] == "%tid.":
            pointer = self.offset("%frame", at.THREAD_INDEX + 128 * "xyz".index(name[-1]))
            return Value(self.load(vector("i32"), pointer, 8), "i32")
        if name == "%laneid":
            return Value(lanes("i32", list(range(LANES))), "i32")
        if name in LANE_MASKS:
            return Value(lanes("i32", [LANE_MASKS[name](i) & 0xFFFFFFFF for i in range(LANES)]), "i32")
        if name == "%warpid":
            return self.spread(Value(self.load("i32", self.offset("%frame", at.WARP)), "i32", True))
        if name in ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo"):
            self.declared["wt_clock"] = "declare i64 @wt_clock(ptr)"
            ticks = Value(self.assign("call i64 @wt_clock(ptr %context)"), "i64", True)
            return self.spread(
                self.operation("lshr", ticks, self.constant("i64", 32)) if name == "%clock_hi" else ticks
            )
        raise UnsupportedError(f"The kernel reads the special register {name}, which windtunnel does not emulate")

    def spread_once(self, value: Value) -> str:
        """The value as a vector, made once in this block."""
        offsets = self.offsets_of(value)
        if offsets is None:
            return value.text
        if value.text not in self._spread:
            first = Value(self.first(value), value.type, True)
            self._spread[value.text] = self.lanes(first) if value.uniform else self.along(first, offsets).text
        return self._spread[value.text]

    def shape(self, addresses: Value, size: int) -> str:
        """How the lanes' addresses lie, as `access.py` knows it."""
        key = addresses.text, size
        offsets = self.offsets_of(addresses)
        if key not in self._shapes and offsets is not None:
            parts = known_shape(offsets, size)
            first = Value(self.first(addresses), "i64", True)
            low, high = (self.operation("add", first, self.constant("i64", o)).text for o in parts[1:3])
            bits = self.operation("or", first, self.constant("i64", parts[3])).text
            whole = "poison"
            for j, (type, part) in enumerate(
                zip(SHAPE.strip("{} ").split(", "), (parts[0], low, high, bits), strict=True)
            ):
                whole = self.assign(f"insertvalue {SHAPE} {whole}, {type} {part}, {j}")
            self._shapes[key] = whole
        elif key not in self._shapes:
            self._shapes[key] = self.assign(f"call {SHAPE} @look_{size}({vector('i64')} {self.spread_once(addresses)})")
        return f"{SHAPE} {self._shapes[key]}"

    def running(self) -> str:
        return self.mask or FULL

    # Blocks

    def block(self, index: int) -> None:
        block = self.graph.blocks[index]
        self.places.clear()
        self._shapes.clear()
        self._spread.clear()
        for instruction in block:
            self.mask = self.base
            if instruction.guard:
                guard = self.lanes(self.guard(instruction))
                self.mask = guard if self.base is None else self.assign(f"and {vector('i1')} {guard}, {self.base}")
            try:
                self.emit_one(self, instruction)
                self._order(instruction)
            except (KeyError, StopIteration, IndexError, ValueError) as error:
                raise unsupported(instruction) from error
        self.mask = self.base

    def _order(self, instruction: Instruction) -> None:
        """Tells the checks what orders accesses of several blocks."""
        if not self.instrumented or not self.graph.fenced:
            return
        if fences(instruction):
            self.declared["wt_fence"] = "declare void @wt_fence(ptr)"
            self.emit("call void @wt_fence(ptr %context)")
        if tells_others(instruction):
            self.declared["wt_order"] = "declare void @wt_order(i32, ptr)"
            self.emit(f"call void @wt_order(i32 {self.mask_bits(self.running()).text}, ptr %context)")

    def guard(self, instruction: Instruction) -> Value:
        value = self.value(instruction.guard or "", "i1")
        return self.operation("xor", value, self.constant("i1", 1)) if instruction.negated else value

    def live_after(self, index: int) -> set[str]:
        return set().union(*(self.graph.live[j] for j in self.graph.successors(index)))

    def site(self, instruction: Instruction, kind: str, space: str, size: int) -> int:
        """The number of this access, the same in every function of the kernel."""
        return self.sites.setdefault(Site(instruction, kind, space, size), len(self.sites))

    def writes(self, instruction: Instruction) -> list[str]:
        return written_and_read(self.graph, instruction)[0]


def _octal(text: str) -> bool:
    digits = text.lstrip("-").rstrip("U")
    return len(digits) > 1 and digits[0] == "0" and digits.isdigit()
