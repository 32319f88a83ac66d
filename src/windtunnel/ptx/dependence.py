"""Where what a kernel does depends on values in memory: its way, or the places that it touches."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from windtunnel.ptx.flow import REGISTER, Graph, is_barrier, written_and_read
from windtunnel.ptx.syntax import Instruction

COPIES = ("cp", "cp.async.bulk")
ACCESSES = ("ld", "ldu", "st", "atom", "red", *COPIES)
TURNS = ("bra", "ret", "exit", "trap", *ACCESSES)
KINDS = {"ld": "loaded", "ldu": "loaded", "cp": "loaded", "st": "stored", "atom": "atomic", "red": "atomic"}
SHARED_BY_ALL = ("global", "generic")
OWN = ("shared", "local")
"""Memory that holds what the kernel itself put there."""

SCALED = ("mul", "mad", "shl")
"""What multiplies its first two operands: a number from memory is an index there, no pointer."""
UNKNOWN = ""
"""A pointer that comes from memory."""
Origins = frozenset[int | str]
"""Offsets of parameters, and names of variables."""
PLACE = re.compile(r"\[\s*([\w$%@#~]+)\s*(?:\+\s*(\d+))?")


@dataclass(frozen=True)
class Accessed:
    """From what each address is computed at which a kernel uses the memory that all blocks share."""

    loaded: frozenset[Origins]
    stored: frozenset[Origins]
    atomic: frozenset[Origins]
    by: Mapping[Instruction, Origins]
    """Of each instruction."""


@functools.cache
def loads_in_turn(graph: Graph) -> int:
    """How many loads of the memory that all blocks share wait for one another: an index, then what it names.

    A loop counts as one turn of it."""
    before: dict[str, int] = {}
    for instruction in (one for block in graph.blocks for one in block):
        written, read = written_and_read(graph, instruction)
        waits = max((before.get(register, 0) for register in read), default=0)
        loads = KINDS.get(instruction.name) == "loaded" and instruction.space in SHARED_BY_ALL
        before.update((register, max(before.get(register, 0), waits + loads)) for register in written)
    return max(before.values(), default=0)


def accessed(graph: Graph, parameters: Mapping[str, int], variables: Collection[str]) -> Accessed:
    every = [instruction for block in graph.blocks for instruction in block]
    origins: dict[str, Origins] = {}
    changed = True
    while changed:
        changed = False
        for instruction in every:
            written, read = written_and_read(graph, instruction)
            found = _origin(instruction, read, origins, parameters, variables)
            for register in written:
                new = not found <= origins.get(register, frozenset())
                changed |= new
                if new:
                    origins[register] = origins.get(register, frozenset()) | found
    found_at: dict[str, set[Origins]] = {kind: set() for kind in KINDS.values()}
    by: dict[Instruction, Origins] = {}
    for instruction in every:
        if instruction.name not in KINDS or instruction.space not in SHARED_BY_ALL:
            continue
        at = 1 if instruction.name in ("ld", "ldu", "cp", "atom") else 0
        place = instruction.operands[at] if len(instruction.operands) > at else ""
        words = REGISTER.findall(place)
        known = {o for word in words for o in origins.get(word, ())} | {word for word in words if word in variables}
        by[instruction] = frozenset(known or {UNKNOWN})
        found_at[KINDS[instruction.name]].add(by[instruction])
    return Accessed(**{kind: frozenset(found) for kind, found in found_at.items()}, by=by)


def _origin(
    instruction: Instruction,
    read: list[str],
    origins: Mapping[str, Origins],
    parameters: Mapping[str, int],
    variables: Collection[str],
) -> Origins:
    """What a result is computed from."""
    if instruction.name in ("ld", "ldu"):
        place = PLACE.match(instruction.operands[1])
        if place and place[1] in parameters and "param" in instruction.opcode[1]:
            return frozenset({parameters[place[1]] + int(place[2] or 0)})
        return frozenset({UNKNOWN} if instruction.type in ("b64", "u64", "s64") else ())
    named = {word for operand in instruction.operands[1:] for word in REGISTER.findall(operand) if word in variables}
    factors = instruction.operands[1:3] if instruction.name in SCALED else ()
    found = {o for r in read for o in origins.get(r, ()) if o != UNKNOWN or r not in factors}
    return frozenset(named | found)


def deciding(graph: Graph) -> list[Instruction]:
    """The branches and accesses that a value from memory decides; parameters and constants are known."""
    every = [instruction for block in graph.blocks for instruction in block]
    unknown: set[str] = set()  # registers, and the kernel's own memory
    before = -1
    while before != len(unknown):
        before = len(unknown)
        for instruction in every:
            unknown |= _learned(graph, instruction, unknown)
    return [instruction for instruction in every if _decided(graph, instruction, unknown)]


def _learned(graph: Graph, instruction: Instruction, unknown: set[str]) -> set[str]:
    written, read = written_and_read(graph, instruction)
    depends = not unknown.isdisjoint(read)
    if instruction.name not in ACCESSES:
        return set(written) if depends else set()
    space = instruction.space
    if instruction.name in ("st", "red"):
        return {space} if depends and space in OWN else set()
    if instruction.name in COPIES:
        return {"shared"}
    loaded = space in SHARED_BY_ALL or space in unknown
    found = set(written) if loaded or depends else set()
    return found | ({space} if instruction.name == "atom" and depends and space in OWN else set())


def _decided(graph: Graph, instruction: Instruction, unknown: set[str]) -> bool:
    turns = instruction.name in TURNS or is_barrier(instruction)
    if turns and instruction.guard in unknown:
        return True
    addresses = [operand for operand in instruction.operands if operand.startswith("[")]
    return instruction.name in ACCESSES and not unknown.isdisjoint(
        word for operand in addresses for word in REGISTER.findall(operand) if word in graph.registers
    )
