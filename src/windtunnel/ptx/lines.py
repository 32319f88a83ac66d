"""Registers of a whole warp that are one number for all lanes and a known offset for each: indices, addresses, the
counters of loops, and what the lanes share.

Where all lanes are at the same instruction, such a register is kept as the first lane's number. Which ones are, the
instructions say alone; where lanes come together again, their registers are looked at before the warp goes on whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from windtunnel.ptx.flow import Graph
from windtunnel.ptx.line import ALL_ZERO, NONE, SAME, Line, Lines, Shape
from windtunnel.ptx.syntax import BYTES, Instruction
from windtunnel.ptx.values import LANES

INTEGER = re.compile(r"^-?(0[xX][0-9a-fA-F]+|\d+)U?$")
REGISTER = re.compile(r"[\w$%@#~]+")
PARALLEL = ("%ctaid", "%nctaid", "%ntid", "%dynamic_smem_size", "%total_smem_size", "%warpid", "WARP_SZ")
KINDS_OF_INTEGER = ("u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64")


def find(graph: Graph, shape: Shape) -> Lines:
    """What the registers of a whole warp are, for blocks of threads of a shape."""
    written: dict[str, int] = {}
    for instruction in _every(graph):
        for register in _results(instruction):
            written[register] = written.get(register, 0) + 1
    several = {register for register, count in written.items() if count > 1}
    varying: set[str] = set()
    while True:
        search = _Search(graph, shape, several, varying)
        more = _parted(graph, search.of, several) - varying
        if not more:
            lines = {name: line for name, line in search.of.items() if line is not None}
            return Lines(lines, {i: what for i, what in search.checked.items() if i.operands[0] in lines})
        varying |= more


def _every(graph: Graph) -> Iterator[Instruction]:
    return (instruction for block in graph.blocks for instruction in block)


def _results(instruction: Instruction) -> list[str]:
    return REGISTER.findall(instruction.operands[0]) if instruction.operands else []


def _skipped(graph: Graph) -> Iterator[Instruction]:
    """What is carried out for some lanes while the others wait (`function.py`): the first may be one that waits."""
    for index, block in enumerate(graph.blocks[:-2]):
        last = block[-1] if block else None
        if last is not None and last.name == "bra" and last.guard and graph.targets[last.operands[-1]] == index + 2:
            yield from graph.blocks[index + 1]


def _parted(graph: Graph, lines: dict[str, Line | None], several: set[str]) -> set[str]:
    """Registers written several times of which lanes that have taken different ways may hold different ones."""
    found: set[str] = set()
    meeting = _meeting_places(graph)
    for index, block in enumerate(graph.blocks):
        last = block[-1] if block else None
        if last is None or last.name != "bra" or not last.guard:
            continue
        guard = lines.get(last.guard)
        if guard is not None and guard.same:
            continue
        end = meeting[index]
        region: set[int] = set()
        work = [s for s in graph.successors(index) if s != end]
        while work:
            here = work.pop()
            if here in region or here == len(graph.blocks):
                continue
            region.add(here)
            work += [s for s in graph.successors(here) if s != end]
        live = graph.live[end] & several
        found |= {r for i in region for one in graph.blocks[i] for r in _results(one) if r in live}
    return found


def _meeting_places(graph: Graph) -> list[int]:
    """Where all ways from a block meet first: its immediate post-dominator (Cooper, Harvey and Kennedy 2001)."""
    end = len(graph.blocks)
    leading: list[list[int]] = [[] for _ in range(end + 1)]
    following = [graph.successors(index) or [end] for index in range(end)]
    for index, successors in enumerate(following):
        for successor in successors:
            leading[successor].append(index)
    order, seen, work = [], {end}, [(end, iter(leading[end]))]
    while work:
        node, rest = work[-1]
        new = next((n for n in rest if n not in seen), None)
        if new is None:
            order.append(node)
            work.pop()
        else:
            seen.add(new)
            work.append((new, iter(leading[new])))
    number = {node: place for place, node in enumerate(order)}
    meeting = {end: end}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [s for s in following[node] if s in meeting]
            if not known:
                continue
            found = known[0]
            for other in known[1:]:
                while found != other:
                    if number[found] < number[other]:
                        found = meeting[found]
                    else:
                        other = meeting[other]
            if meeting.get(node) != found:
                meeting[node] = found
                changed = True
    return [meeting.get(index, end) for index in range(end)]


class _Search:
    """From the most that may hold down to what the instructions allow."""

    def __init__(self, graph: Graph, shape: Shape, several: set[str], varying: set[str]) -> None:
        self.graph, self.several = graph, several
        self.specials = {f"%tid.{axis}": line for axis, line in zip("xyz", shape, strict=True)}
        self.specials["%laneid"] = Line(tuple(range(LANES)), ALL_ZERO, LANES)
        self.of: dict[str, Line | None] = dict.fromkeys(varying)
        self.checked: dict[Instruction, tuple[str, Line]] = {}
        self.skipped = set(_skipped(graph))
        self.used: dict[str, list[Instruction]] = {}
        work = list(_every(graph))
        for instruction in work:
            for register in self._read(instruction):
                self.used.setdefault(register, []).append(instruction)
        while work:
            again: dict[Instruction, None] = {}
            for instruction in work:
                for register in self._visit(instruction):
                    again |= dict.fromkeys(self.used.get(register, ()))
            work = list(again)

    def _read(self, instruction: Instruction) -> list[str]:
        names = [r for operand in instruction.operands[1:] for r in REGISTER.findall(operand)]
        return [name for name in names if name in self.graph.registers]

    def _visit(self, instruction: Instruction) -> list[str]:
        """The registers of which less is known than before."""
        row = self.graph.table[instruction.name]
        if not row.writes or not instruction.operands:
            return []
        if any(r not in self.of for r in self._read(instruction)):
            return []  # not yet
        line = None if instruction.guard else self._result(instruction, row.lanewise)
        changed = []
        for register in _results(instruction):
            if register not in self.graph.registers:
                continue
            new = self._merged(register, line)
            if register not in self.of or self.of[register] != new:
                self.of[register] = new
                changed.append(register)
        return changed

    def _merged(self, register: str, line: Line | None) -> Line | None:
        if register not in self.several:
            return line
        before = self.of.get(register, line)
        if line is None or before is None or before.offsets != line.offsets:
            return None
        return Line(line.offsets, min(line.zeros, before.zeros))

    def _operand(self, operand: str) -> Line | None:
        if operand in self.graph.registers:
            return self.of[operand]
        if operand in self.specials:
            return self.specials[operand]
        if INTEGER.match(operand):
            number = int(operand.rstrip("U"), 0)
            zeros = (number & -number).bit_length() - 1 if number else ALL_ZERO
            return Line(NONE, zeros, number + 1 if number >= 0 else None)
        if operand.startswith(PARALLEL):
            return SAME
        return SAME if operand[:1] != "%" and REGISTER.fullmatch(operand) else None

    def _result(self, i: Instruction, lanewise: bool) -> Line | None:
        self.checked.pop(i, None)
        if i.name in ("ld", "ldu"):
            return self._loaded(i)
        if i.name == "vote":
            return SAME if i.has("sync") and i.operands[2] in ("-1", "0xffffffff") else None
        if not lanewise or i.operands[0][0] == "{" or (i.name == "cvta" and i.has("local")):
            return None
        operands = [self._operand(operand) for operand in i.operands[1:]]
        known = [line for line in operands if line is not None]
        if len(known) < len(operands):
            return None
        made = self._computed(i, known) if i.type in KINDS_OF_INTEGER else None
        if made is not None:
            return self._fitted(made, i.operands[0])
        return SAME if all(line.same for line in known) else None

    def _fitted(self, line: Line, register: str) -> Line:
        bits = 8 * BYTES[self.graph.registers.get(register, "b64")]
        half = 1 << (bits - 1)
        limit = line.limit if line.limit is not None and line.limit <= half else None
        return Line(tuple((o + half) % (2 * half) - half for o in line.offsets), line.zeros, limit)

    def _loaded(self, i: Instruction) -> Line | None:
        """What all lanes read at one place."""
        if i.space == "param" and i.opcode[1].startswith("param"):
            return SAME
        place = [self._operand(word) for word in REGISTER.findall(i.operands[1]) if not INTEGER.match(word)]
        private = i.space == "local" or any(word in i.operands[1] for word in ("%tid", "%laneid"))
        if private or i in self.skipped or any(i.has(word) for word in ("volatile", "acquire", "relaxed")):
            return None
        return SAME if all(line is not None and line.same for line in place) else None

    def _computed(self, i: Instruction, lines: list[Line]) -> Line | None:
        if i.has("cc") or i.has("sat") or i.has("hi"):
            return None
        if i.name in ("mov", "cvta"):
            return lines[0]
        if i.name == "cvt":
            return self._converted(i, lines[0])
        if i.name == "add":
            return _sum(lines[0], lines[1])
        if i.name == "sub":
            return _sum(lines[0], _times(lines[1], -1))
        if i.name in ("mul", "mad"):
            product = self._product(i, *lines[:2])
            return product if product is None or i.name == "mul" else _sum(product, lines[2])
        if i.name in ("or", "xor"):
            a, b = lines
            apart = any(y.limit is not None and y.limit <= 1 << _every_zero(x) for x, y in ((a, b), (b, a)))
            return _sum(a, b) if apart else None
        literal = _literal(i.operands[2]) if len(i.operands) == 3 else None
        return None if literal is None or literal < 0 else _by_literal(i.name, lines[0], literal)

    def _product(self, i: Instruction, a: Line, b: Line) -> Line | None:
        if a.same and b.same:
            limit = a.limit * b.limit if a.limit is not None and b.limit is not None else None
            return Line(NONE, min(a.zeros + b.zeros, ALL_ZERO), limit)
        one, other = i.operands[1:3]
        for line, operand, factor in ((a, one, other), (b, other, one)):
            literal = _literal(factor)
            if literal is not None and (literal >= 0 or i.type[0] == "s" or not i.has("wide")):
                wide = self._widened(i, operand, line) if i.has("wide") else line
                return None if wide is None else _times(wide, literal)
        return None

    def _converted(self, i: Instruction, line: Line) -> Line | None:
        to, of = i.opcode[-2:]
        if to not in KINDS_OF_INTEGER or of not in KINDS_OF_INTEGER:
            return None
        return self._widened(i, i.operands[1], line) if BYTES[to] > BYTES[of] else line

    def _widened(self, i: Instruction, operand: str, line: Line) -> Line | None:
        """In more bits the lanes lie as they did if none of them has wrapped around."""
        bits = 8 * BYTES[i.type]
        if line.same or (line.limit is not None and line.limit <= 1 << (bits - 1)):
            return line
        if i in self.skipped:
            return None
        self.checked[i] = operand, line
        return line


def _literal(operand: str) -> int | None:
    return int(operand.rstrip("U"), 0) if INTEGER.match(operand) else None


def _every_zero(line: Line) -> int:
    """Low bits that are zero in all lanes."""
    together = 0
    for offset in line.offsets:
        together |= offset
    return min(line.zeros, (together & -together).bit_length() - 1 if together else ALL_ZERO)


def _sum(a: Line, b: Line) -> Line:
    limit = a.limit + b.limit - 1 if a.limit is not None and b.limit is not None else None
    return Line(tuple(x + y for x, y in zip(a.offsets, b.offsets, strict=True)), min(a.zeros, b.zeros), limit)


def _times(line: Line, number: int) -> Line:
    zeros = (number & -number).bit_length() - 1 if number else ALL_ZERO
    limit = None if line.limit is None or number < 0 else (line.limit - 1) * number + 1
    return Line(tuple(o * number for o in line.offsets), min(line.zeros + zeros, ALL_ZERO), limit)


def _by_literal(name: str, line: Line, number: int) -> Line | None:
    """Shifts, and the bits of a mask."""
    if name == "shl":
        return _times(line, 1 << number) if number < 32 else None
    if name not in ("shr", "and") or not line.apart:
        return None
    if name == "shr":
        limit = None if line.limit is None else (line.limit - 1 >> number) + 1
        return Line(tuple(o >> number for o in line.offsets), max(line.zeros - number, 0), limit)
    kept = replace(line, offsets=tuple(o & number for o in line.offsets), limit=number + 1)
    return (
        replace(kept, zeros=max(line.zeros, (number & -number).bit_length() - 1)) if number else Line(NONE, ALL_ZERO, 1)
    )
