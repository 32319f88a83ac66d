"""Values of a warp in LLVM IR: a vector of 32 lanes, or one scalar where all lanes agree."""

from __future__ import annotations

import struct
from dataclasses import dataclass

LANES = 32
BITS = {"i1": 1, "i8": 8, "i16": 16, "half": 16, "i32": 32, "float": 32, "i64": 64, "double": 64, "i128": 128}
SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


@dataclass(frozen=True)
class Value:
    text: str
    type: str
    uniform: bool = False

    @property
    def bits(self) -> int:
        return BITS[self.type]

    @property
    def floating(self) -> bool:
        return self.type in SUFFIX


def vector(type: str) -> str:
    return f"<{LANES} x {type}>"


def lanes(type: str, numbers: list[int]) -> str:
    return "<" + ", ".join(f"{type} {n}" for n in numbers) + ">"


def float_literal(bits: int) -> str:
    """LLVM writes a float as the hexadecimal digits of the double of the same value."""
    single = struct.unpack("<f", struct.pack("<I", bits))[0]
    if single != single:  # a NaN keeps its payload only if it is moved bit by bit
        sign, fraction = bits >> 31, bits & 0x7FFFFF
        return f"0x{sign << 63 | 0x7FF << 52 | fraction << 29:016X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


class Builder:
    """Appends instructions of LLVM IR to a function's text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.count = 0
        self.made: dict[str, tuple[str, tuple[Value, ...]]] = {}
        """Vectors of the block that is being emitted, by what each lane is computed of."""
        self.firsts: dict[str, str] = {}
        """The first lane of vectors."""

    def emit(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(name + ":")

    def assign(self, text: str) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def type_of(self, value: Value) -> str:
        return value.type if value.uniform else vector(value.type)

    def constant(self, type: str, number: int) -> Value:
        """An integer, or the bits of a floating-point number."""
        if type == "i1":
            return Value("true" if number else "false", type, True)
        bits = BITS[type]
        number &= (1 << bits) - 1
        if type == "float":
            return Value(float_literal(number), type, True)
        if type == "double":
            return Value(f"0x{number:016X}", type, True)
        if type == "half":
            return Value(f"0xH{number:04X}", type, True)
        return Value(str(number - (1 << bits) if number >> (bits - 1) else number), type, True)

    def number(self, type: str, value: float) -> Value:
        """A floating-point constant."""
        if type == "double":
            return self.constant(type, struct.unpack("<Q", struct.pack("<d", value))[0])
        if type == "half":
            return self.constant(type, struct.unpack("<H", struct.pack("<e", value))[0])
        return self.constant(type, struct.unpack("<I", struct.pack("<f", value))[0])

    def lanes(self, value: Value) -> str:
        """The value as a vector."""
        if not value.uniform:
            return value.text
        if value.text[0] != "%":
            return f"splat ({value.type} {value.text})"
        wide = vector(value.type)
        first = self.assign(f"insertelement {wide} poison, {value.type} {value.text}, i32 0")
        return self.assign(f"shufflevector {wide} {first}, {wide} poison, <{LANES} x i32> zeroinitializer")

    def spread(self, value: Value) -> Value:
        return Value(self.lanes(value), value.type)

    def agree(self, *values: Value) -> tuple[Value, ...]:
        """All of them as scalars, or all as vectors."""
        if all(v.uniform for v in values):
            return values
        return tuple(self.spread(v) for v in values)

    def operation(self, opcode: str, *values: Value) -> Value:
        agreed = self.agree(*values)
        first = agreed[0]
        text = self.assign(f"{opcode} {self.type_of(first)} {', '.join(v.text for v in agreed)}")
        if not first.uniform:
            self.made[text] = f"{opcode} {first.type}", values
        return Value(text, first.type, first.uniform)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        result = self.operation(f"{'fcmp' if a.floating else 'icmp'} {predicate}", a, b)
        return Value(result.text, "i1", result.uniform)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        given = condition, a, b
        c, a, b = self.agree(*given)
        wide = self.type_of(a)
        text = self.assign(f"select {self.type_of(c)} {c.text}, {wide} {a.text}, {wide} {b.text}")
        if not a.uniform:
            self.made[text] = "select", given
        return Value(text, a.type, a.uniform)

    def convert(self, opcode: str, value: Value, type: str) -> Value:
        wide = type if value.uniform else vector(type)
        text = self.assign(f"{opcode} {self.type_of(value)} {value.text} to {wide}")
        if not value.uniform:
            self.made[text] = f"{opcode} to {type}", (value,)
        return Value(text, type, value.uniform)

    def first(self, value: Value) -> str:
        """The first lane's value, computed alone where that can be."""
        if value.uniform:
            return value.text
        if value.text in self.firsts:
            return self.firsts[value.text]
        if value.text in self.made:
            opcode, given = self.made[value.text]
            parts = [(part.type, self.first(part)) for part in given]
            if opcode == "select":
                text = "select " + ", ".join(f"{type} {part}" for type, part in parts)
            elif " to " in opcode:
                text = f"{opcode.split()[0]} {parts[0][0]} {parts[0][1]} to {value.type}"
            else:
                text = f"{opcode} {', '.join(part for _, part in parts)}"
        else:
            text = f"extractelement {vector(value.type)} {value.text}, i32 0"
        self.firsts[value.text] = self.assign(text)
        return self.firsts[value.text]

    def bitcast(self, value: Value, type: str) -> Value:
        return value if value.type == type else self.convert("bitcast", value, type)

    def integer(self, value: Value) -> Value:
        return self.bitcast(value, f"i{value.bits}")

    def resize(self, value: Value, type: str, signed: bool = False) -> Value:
        """The bits of a value as a type of another width."""
        if value.type == type:
            return value
        value = self.integer(value)
        wanted = BITS[type]
        if value.bits > wanted:
            value = self.convert("trunc", value, f"i{wanted}")
        elif value.bits < wanted:
            value = self.convert("sext" if signed else "zext", value, f"i{wanted}")
        return self.bitcast(value, type)

    def intrinsic(self, name: str, *values: Value, flags: tuple[str, ...] = (), result: str | None = None) -> Value:
        """`llvm.NAME` of each lane; `flags` are its constant operands."""
        agreed = self.agree(*values)
        first = agreed[0]
        returned = result or first.type

        def overload(type: str) -> str:
            return ("" if first.uniform else f"v{LANES}") + SUFFIX.get(type, type)

        full = f"llvm.{name}." + (f"{overload(result)}." if result else "") + overload(first.type)
        wide = returned if first.uniform else vector(returned)
        types = [self.type_of(v) for v in agreed] + [f.split()[0] for f in flags]
        self.declared[full] = f"declare {wide} @{full}({', '.join(types)})"
        operands = [f"{self.type_of(v)} {v.text}" for v in agreed] + list(flags)
        return Value(self.assign(f"call {wide} @{full}({', '.join(operands)})"), returned, first.uniform)

    def reduce(self, name: str, value: Value) -> Value:
        """One scalar of all lanes."""
        full = f"llvm.vector.reduce.{name}.v{LANES}{value.type}"
        self.declared[full] = f"declare {value.type} @{full}({vector(value.type)})"
        return Value(
            self.assign(f"call {value.type} @{full}({vector(value.type)} {self.lanes(value)})"), value.type, True
        )

    def mask_bits(self, mask: str) -> Value:
        return Value(self.assign(f"bitcast <{LANES} x i1> {mask} to i32"), "i32", True)

    def mask_of(self, bits: Value) -> str:
        return self.assign(f"bitcast i32 {bits.text} to <{LANES} x i1>")

    def load(self, type: str, pointer: str, align: int = 4, more: str = "") -> str:
        return self.assign(f"load {type}, ptr {pointer}, align {align}{more}")

    def store(self, type: str, text: str, pointer: str, align: int = 4) -> None:
        self.emit(f"store {type} {text}, ptr {pointer}, align {align}")

    def offset(self, pointer: str, count: int) -> str:
        return self.assign(f"getelementptr i8, ptr {pointer}, i64 {count}")
