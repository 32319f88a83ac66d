"""Copies of CUDA's vectors in LLVM IR as nvcc makes them: whole, at the alignment that their type demands.

clang knows less of an address that it can trace to a variable: `*(float4 *)&tile[i]`, where `tile` is an array of
floats, is four loads for it. For nvcc, which believes the cast, it is one load of 16 bytes, which a GPU refuses at an
address that is no multiple of 16."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

NODE = re.compile(r"^!(\d+) = (?:distinct )?!\{(.*)\}$")
COPY = re.compile(r"^(\s*)(?:tail )?call void @llvm\.memcpy\.p0\.p0\.i64\((.*), i1 false\)(.*), !tbaa !(\d+)")
MOVE = re.compile(r"^(\s*(?:%\S+ = load|store) .*), align (\d+)(,.*)? ?!tbaa !(\d+)")
SCALAR = re.compile(r"(?:= load|store) (i16|i32|i64|float|double|half|bfloat)[ ,]")
DEFINED = re.compile(r"^\s*(%\S+) = (\w+) (.*)$")
TAG = re.compile(r",? ?!tbaa(?:\.struct)? !\d+")
VECTOR = re.compile(
    r"_ZTS\d+(?:(?:u?char|u?short|u?int|u?long(?:long)?|float|double)[24]|(?:__)?half2|__nv_bfloat162)$"
)
WIDEST = 16
"""Bytes of a thread's largest access."""


@dataclass
class _Type:
    """A node of the compiler's tree of types: its size, name and largest part that is no structure."""

    size: int
    name: str
    part: int


@dataclass
class _Side:
    """An operand of a copy: the pointer, its alignment as clang has it, and what it is traced to."""

    pointer: str
    align: int
    origin: str
    """`own` (a variable of the thread's), `variable` (its parts, or a named one), `pointer`, or nothing."""


@dataclass
class _Copy:
    at: int
    indent: str
    sides: tuple[_Side, _Side]
    size: int
    rest: str
    type: int


@dataclass
class _Module:
    lines: list[str]
    nodes: dict[int, list[str]] = field(default_factory=dict)
    types: dict[int, _Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self.lines:
            found = NODE.match(line) if line[:1] == "!" else None
            if found:
                self.nodes[int(found[1])] = [part.strip() for part in _split(found[2])]

    def accessed(self, tag: int) -> int | None:
        """The type that a tag says is accessed as a whole, not as a part of another one."""
        parts = self.nodes.get(tag, [])
        whole = len(parts) > 3 and parts[0] == parts[1] and parts[2] == "i64 0"
        return int(parts[0][1:]) if whole else None

    def type(self, node: int) -> _Type:
        """The type of a node."""
        if node not in self.types:
            parts = self.nodes[node]
            size = int(parts[1].split()[-1]) if len(parts) > 1 and parts[1].startswith("i64 ") else 0
            members = [int(part[1:]) for part in parts[3::3] if re.fullmatch(r"!\d+", part)]
            largest = max((self.type(member).part for member in members), default=size)
            self.types[node] = _Type(size, parts[2][2:-1] if len(parts) > 2 else "", largest)
        return self.types[node]


def whole_accesses(text: str) -> str:
    """The module with such copies whole, and without what clang noted of the types of accesses."""
    lines = text.split("\n")
    module = _Module(lines)
    copies: list[_Copy] = []
    defined: dict[str, tuple[str, str]] = {}
    for at, line in enumerate(lines):
        if line.startswith("define "):
            defined = {}
        found = DEFINED.match(line)
        if found:
            defined[found[1]] = found[2], found[3]
        if "!tbaa" not in line:
            continue
        copied = COPY.match(line)
        copy = _copy(module, at, copied, defined) if copied else None
        if copy:
            copies.append(copy)
        elif not copied:
            lines[at] = _scalar(module, line, defined)
    aligned = _alignments(module, copies)
    for number, copy in enumerate(copies):
        lines[copy.at] = _written(copy, aligned.get(copy.type, 0), module.type(copy.type), number)
    return "\n".join(TAG.sub("", line) if line[:1] == " " else line for line in lines)


def _copy(module: _Module, at: int, found: re.Match[str], defined: dict[str, tuple[str, str]]) -> _Copy | None:
    node, operands = module.accessed(int(found[4])), [part.strip() for part in _split(found[2])]
    size = operands[2].removeprefix("i64 ")
    if node is None or not size.isdigit() or module.type(node).size != int(size):
        return None
    target, source = (_side(operand, defined) for operand in operands[:2])
    return _Copy(at, found[1], (target, source), int(size), found[3], node)


def _side(operand: str, defined: dict[str, tuple[str, str]]) -> _Side:
    found = re.match(r"ptr (?:align (\d+) )?(.*)$", operand)
    assert found, operand
    return _Side(found[2], int(found[1] or 1), _origin(found[2], defined))


def _origin(pointer: str, defined: dict[str, tuple[str, str]]) -> str:
    """What an address is computed from."""
    own = "own"
    while True:
        if "@" in pointer:
            return "variable"
        opcode, rest = defined.get(pointer, ("", ""))
        if opcode == "alloca":
            return own
        if opcode == "load":
            return "pointer"
        following = re.search(r"ptr (?:addrspace\(\d+\) )?(%[^\s,]+)", rest)
        if opcode == "addrspacecast" and following:
            pointer = following[1]
        elif opcode == "getelementptr":
            pointer, own = following[1] if following else rest, "variable"
        else:
            return ""


def _alignments(module: _Module, copies: list[_Copy]) -> dict[int, int]:
    """What each type's alignment is, as far as the module shows it."""
    found: dict[int, int] = {}
    for origin in ("pointer", "own"):
        seen: dict[int, int] = {}
        for copy in copies:
            for side in copy.sides:
                if side.origin == origin:
                    seen[copy.type] = min(side.align, seen.get(copy.type, side.align))
        for node, align in seen.items():
            if origin == "pointer" or align == min(module.type(node).size, WIDEST):
                found.setdefault(node, align)
    for copy in copies:
        if VECTOR.match(module.type(copy.type).name):
            found[copy.type] = min(copy.size, WIDEST)
    return found


def _written(copy: _Copy, align: int, type: _Type, number: int) -> str:
    target, source = copy.sides
    to, of = max(align, target.align), max(align, source.align)
    one = align >= WIDEST and copy.size <= 2 * WIDEST and type.part < align
    if not one or "own" in (target.origin, source.origin):
        return (
            f"{copy.indent}call void @llvm.memcpy.p0.p0.i64(ptr align {to} {target.pointer}, ptr align {of} "
            f"{source.pointer}, i64 {copy.size}, i1 false){copy.rest}"
        )
    made = []
    for step in range(0, copy.size, WIDEST):
        name, places = f"%whole.{number}.{step}", []
        for letter, side in (("t", target), ("s", source)):
            places.append(f"{name}.{letter}" if step else side.pointer)
            if step:
                made.append(f"{places[-1]} = getelementptr inbounds i8, ptr {side.pointer}, i64 {step}{copy.rest}")
        made.append(f"{name} = load <4 x i32>, ptr {places[1]}, align {WIDEST}{copy.rest}")
        made.append(f"store <4 x i32> {name}, ptr {places[0]}, align {WIDEST}{copy.rest}")
    return "\n".join(copy.indent + line for line in made)


def _scalar(module: _Module, line: str, defined: dict[str, tuple[str, str]]) -> str:
    """A load or store of a number in a variable of smaller ones, at the number's own alignment."""
    found, kind = MOVE.match(line), SCALAR.search(line)
    node = module.accessed(int(found[4])) if found and kind else None
    if not found or node is None:
        return line
    size = module.type(node).size
    pointer = _split(found[1])[-1].strip().removeprefix("ptr ")
    if int(found[2]) >= size or size > 8 or _origin(pointer, defined) not in ("own", "variable"):
        return line
    return line[: found.start(2)] + str(size) + line[found.end(2) :]


def _split(text: str) -> list[str]:
    """The parts between commas, but for those in brackets or strings."""
    return list(_parts(text))


def _parts(text: str) -> Iterator[str]:
    depth, begin, quoted = 0, 0, False
    for at, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if text:
        yield text[begin:]
