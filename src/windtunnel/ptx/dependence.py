"""Where what a kernel does depends on values in memory: its way, or the places that it touches."""

from __future__ import annotations

from windtunnel.ptx.flow import REGISTER, Graph, is_barrier, written_and_read
from windtunnel.ptx.syntax import Instruction

ACCESSES = ("ld", "ldu", "st", "atom", "red", "cp")
TURNS = ("bra", "ret", "exit", "trap", *ACCESSES)
SHARED_BY_ALL = ("global", "generic")
OWN = ("shared", "local")
"""Memory that holds what the kernel itself put there."""


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
    if instruction.name == "cp":
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
