"""Basic blocks of a kernel, which registers live across them, and which hold one value for the whole block of
threads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from windtunnel.errors import UnsupportedError
from windtunnel.ptx.calls import Flat
from windtunnel.ptx.facts import Facts, Kind
from windtunnel.ptx.line import Lines
from windtunnel.ptx.meeting import ALL_LANES, collective, mask_operand, meets, ranks
from windtunnel.ptx.syntax import Instruction, Label

ENDS = ("bra", "ret", "exit", "trap", "brx")
LEAVES = ("ret", "exit", "trap")
RAW_NAN = ("add", "sub", "mul", "fma", "mad")
"""Results in f32 of which a NaN becomes the GPU's only where its bits are seen: inner loops are made of these."""
COLLECT = "$collect"
REGISTER = re.compile(r"[\w$%@#~]+")
VARYING = ("%tid", "%lane", "%warpid", "%clock", "%globaltimer")


def facts_of(table: Mapping[str, Facts], instruction: Instruction) -> Facts:
    """The instruction's row in the table, or the refusal that names it."""
    row = table.get(instruction.name)
    if row is None:
        raise unsupported(instruction)
    if row.modifiers is not None:
        for part in instruction.opcode[1:]:
            if part and part not in row.modifiers:
                raise unsupported(instruction)
    return row


def unsupported(instruction: Instruction) -> UnsupportedError:
    line = f" (line {instruction.location.line} of its source)" if instruction.location else ""
    return UnsupportedError(
        f"The kernel contains the PTX instruction `{instruction.text}`{line}, which windtunnel does not emulate"
    )


@dataclass(eq=False)
class Graph:
    blocks: list[list[Instruction]]
    targets: dict[str, int]
    registers: dict[str, str]
    table: Mapping[str, Facts]
    live: list[set[str]] = field(default_factory=list)
    """Registers that are live at the start of each block, and at the end of the kernel."""
    entries: set[int] = field(default_factory=set)
    """Blocks at which a whole warp may start: joins, and what follows a barrier."""
    uniform: set[str] = field(default_factory=set)

    following: list[list[int]] = field(default_factory=list)
    leading: list[list[int]] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    """The place of each block in the order in which lanes that are apart run, and of the kernel's end."""
    asks: bool = False
    """Whether it waits for other blocks: for what they write, or at a barrier of the grid."""
    fenced: bool = False
    """Whether something orders its accesses of global memory before those of other blocks."""
    apart: bool = False
    """Whether lanes may meet that stand at different instructions, as `meeting.py` knows it."""
    copies: bool = False
    """Whether it copies to shared memory asynchronously."""
    apart_at_barriers: bool = False
    """Whether there are barriers at which only a part of a block's warps may meet."""
    lanes_apart: bool = False
    """Whether there are places at which only a part of a warp's lanes may meet."""
    tells_host: bool = False
    """Whether it has atomics or fences that hold for the host too, which may use its results while it runs."""
    sums: bool = False
    """Whether it adds up floating-point numbers in global memory by atomics."""
    unfenced: bool = False
    """Whether blocks wait for what others write, and nothing orders what these have written before."""
    locks: bool = False
    """Whether it may have locks, which others may ask or open by plain accesses."""
    lines: Lines = field(default_factory=lambda: Lines({}, {}))
    """The registers of a whole warp that lie in a line, for the blocks of threads that it is compiled for."""
    raw: set[str] = field(default_factory=set)
    """Registers that may hold the host's NaN."""

    def successors(self, index: int) -> list[int]:
        block = self.blocks[index]
        last = block[-1] if block else None
        following = [index + 1]
        if last is None:
            return following
        if last.name == "bra":
            target = self.targets[last.operands[-1]]
            return [target, *following] if last.guard else [target]
        if last.name in LEAVES:
            return following if last.guard else []
        return following

    def reached(self, start: int, edges: list[list[int]]) -> set[int]:
        """The blocks to which the edges lead from a block."""
        found: set[int] = set()
        work = [start]
        while work:
            new = set(edges[work.pop()]) - found
            found |= new
            work += new
        return found

    def ends_with_barrier(self, index: int) -> bool:
        return bool(self.blocks[index]) and is_barrier(self.blocks[index][-1])


def is_barrier(instruction: Instruction) -> bool:
    return (
        instruction.name in ("bar", "barrier")
        and "warp" not in instruction.opcode
        and "arrive" not in instruction.opcode
    )


def of_grid(instruction: Instruction) -> bool:
    """Whether all blocks meet at it."""
    return instruction.name == "barrier" and instruction.has("grid")


def of_some(instruction: Instruction) -> bool:
    """Whether only a part of a block's warps may meet at it."""
    if instruction.name.startswith("mbarrier"):
        return True
    if instruction.name not in ("bar", "barrier") or instruction.has("warp") or instruction.has("grid"):
        return False
    return instruction.operands[:1] != ("0",) or len(instruction.operands) - instruction.has("red") > 1


def fences(instruction: Instruction) -> bool:
    """Whether accesses before it come before those behind it for other blocks, too."""
    if instruction.name in ("membar", "fence"):
        return not instruction.has("cta")
    return (
        instruction.name in ("ld", "st", "atom", "red")
        and not instruction.has("cta")
        and any(instruction.has(word) for word in ("acquire", "release", "acq_rel"))
    )


def sums_up(instruction: Instruction) -> bool:
    """Whether it adds a floating-point number by an atomic: what is read before all have added is a part of the sum."""
    is_sum = instruction.name in ("atom", "red") and instruction.has("add") and instruction.space != "shared"
    return is_sum and "f" in instruction.type


def tells_others(instruction: Instruction) -> bool:
    """An access by which threads of several blocks may tell each other something."""
    if instruction.space in ("shared", "local"):
        return False
    if instruction.name in ("ld", "st"):
        return any(instruction.has(word) for word in ("volatile", "acquire", "release", "relaxed"))
    return instruction.name in ("atom", "red")


def waits_for_others(instruction: Instruction) -> bool:
    """What a loop asks that waits for another thread: it may never end."""
    if instruction.name in ("mbarrier.test_wait", "mbarrier.try_wait"):
        return True
    if instruction.name == "ld":
        return any(instruction.has(word) for word in ("volatile", "acquire", "relaxed"))
    if instruction.name != "atom":
        return False
    reads = instruction.operands[-1] == "0" and not instruction.has("and")  # an atomic that changes nothing
    return instruction.has("cas") or instruction.has("exch") or reads


def build(flat: Flat, table: Mapping[str, Facts], apart: bool = False, alone: Collection[Instruction] = ()) -> Graph:
    """The graph of a kernel; a block of its own begins with each instruction of `alone`."""
    blocks: list[list[Instruction]] = [[]]
    targets: dict[str, int] = {}
    skipped = 0
    for statement in flat.statements:
        if isinstance(statement, Label):
            if blocks[-1]:
                blocks.append([])
            targets[statement.name] = len(blocks) - 1
            continue
        kind = facts_of(table, statement).kind
        if statement.guard and kind in (Kind.BARRIER, Kind.WARP, Kind.CALL):
            # A guard around what waits for other threads is a branch around it.
            skipped += 1
            name = f"$skip{skipped}"
            blocks[-1].append(_branch_around(statement, name))
            blocks.append([replace(statement, guard=None, negated=False)])
            blocks.append([])
            targets[name] = len(blocks) - 1
            continue
        if statement in alone or (waits_for_others(statement) and blocks[-1]):
            blocks.append([])
        by_itself = apart and collective(statement)
        if meets(statement) and blocks[-1] and (by_itself or not _together(blocks[-1][-1], statement)):
            blocks.append([])  # lanes that arrive first wait for the others at a block's start
        if is_barrier(statement) and statement.has("red"):
            # The result is there once the barrier is passed: another instruction of our own takes it.
            blocks[-1].append(replace(statement, operands=statement.operands[1:]))
            blocks.append(
                [replace(statement, opcode=(COLLECT, *statement.opcode[1:]), operands=statement.operands[:1])]
            )
            continue
        blocks[-1].append(statement)
        if statement.name in ENDS or is_barrier(statement):
            blocks.append([])
    graph = Graph(blocks, targets, flat.registers, table, apart=apart)
    _reachable_targets(graph)
    _liveness(graph)
    joined = [0] * (len(blocks) + 1)
    for index in range(len(blocks)):
        for successor in graph.successors(index):
            joined[successor] += 1
    after = {i + 1 for i in range(len(blocks) - 1) if graph.ends_with_barrier(i)}
    asking = {i for i, block in enumerate(blocks) if block and waits_for_others(block[0])}
    meeting = {i for i, block in enumerate(blocks) if block and meets(block[0])}
    graph.entries = {0} | {i for i in range(len(blocks)) if joined[i] >= 2} | after | meeting | asking
    graph.asks = bool(asking)
    _describe(graph)
    graph.following = [[s for s in graph.successors(i) if s < len(blocks)] for i in range(len(blocks))]
    graph.leading = [[] for _ in blocks]
    for index, successors in enumerate(graph.following):
        for successor in successors:
            graph.leading[successor].append(index)
    graph.rank = ranks(graph.following)
    graph.uniform = _uniform(graph, flat)
    return graph


def _describe(graph: Graph) -> None:
    """What the checks and the scheduler want to know of all its instructions."""
    every = [i for block in graph.blocks for i in block]
    graph.asks |= any(map(of_grid, every))
    graph.fenced = any(map(fences, every))
    graph.sums = any(map(sums_up, every))
    locks = {i.space for i in every if i.name == "atom" and (i.has("cas") or i.has("exch"))}
    graph.locks = bool(locks - {"global"})
    polls = any(waits_for_others(i) and i.name == "ld" and i.space not in ("shared", "local") for i in every)
    graph.unfenced = polls and not graph.fenced and not locks - {"shared"}
    graph.copies = any(i.name == "cp" for i in every)
    graph.apart_at_barriers = any(map(of_some, every))
    graph.lanes_apart = any(meets(i) and mask_operand(i) not in ALL_LANES for i in every)
    graph.tells_host = any(i.has("sys") for i in every)
    graph.raw = _raw(graph, every)


def _raw(graph: Graph, every: Sequence[Instruction]) -> set[str]:
    """What such arithmetic gives, and what lanes take from each other of it."""
    found = {r for i in every if i.name in RAW_NAN and i.type == "f32" for r in written_and_read(graph, i)[0]}
    taken = [i for i in every if i.name == "shfl"]
    before = -1
    while before != len(found):
        before = len(found)
        found |= {i.operands[0].split("|")[0].strip() for i in taken if i.operands[1] in found}
    return found


def _together(first: Instruction, second: Instruction) -> bool:
    """Whether lanes that have met at the first instruction have met at the second one, too."""
    mask = mask_operand(second)
    return meets(first) and mask_operand(first) == mask and mask not in REGISTER.findall(first.operands[0])


def _branch_around(statement: Instruction, target: str) -> Instruction:
    return replace(statement, opcode=("bra",), operands=(target,), negated=not statement.negated)


def _reachable_targets(graph: Graph) -> None:
    for block in graph.blocks:
        for instruction in block:
            if instruction.name == "brx":
                raise unsupported(instruction)
            if instruction.name == "bra" and instruction.operands[-1] not in graph.targets:
                raise unsupported(instruction)


def written_and_read(graph: Graph, instruction: Instruction) -> tuple[list[str], list[str]]:
    row = facts_of(graph.table, instruction)
    operands = instruction.operands

    def registers(operand: str) -> list[str]:
        return [word for word in REGISTER.findall(operand) if word in graph.registers]

    count = 1 if row.writes else 0
    written = [r for operand in operands[:count] for r in registers(operand)]
    read = [r for operand in operands[count:] for r in registers(operand)]
    if instruction.guard:
        read.append(instruction.guard)
    return written, read


def _liveness(graph: Graph) -> None:
    used: list[set[str]] = []
    killed: list[set[str]] = []
    for block in graph.blocks:
        uses: set[str] = set()
        kills: set[str] = set()
        for instruction in block:
            written, read = written_and_read(graph, instruction)
            uses |= {r for r in read if r not in kills}
            if instruction.guard:
                uses |= {r for r in written if r not in kills}
            else:
                kills |= set(written)
        used.append(uses)
        killed.append(kills)
    count = len(graph.blocks)
    live: list[set[str]] = [set() for _ in range(count + 1)]
    changed = True
    while changed:
        changed = False
        for index in reversed(range(count)):
            after: set[str] = set().union(*(live[j] for j in graph.successors(index)))
            now = used[index] | (after - killed[index])
            if now != live[index]:
                live[index] = now
                changed = True
    graph.live = live


def _uniform(graph: Graph, flat: Flat) -> set[str]:
    """Registers that are written once, from values that all threads of the block share."""
    definitions: dict[str, int] = {}
    for block in graph.blocks:
        for instruction in block:
            for register in written_and_read(graph, instruction)[0]:
                definitions[register] = definitions.get(register, 0) + 1
    local = {v.name for v in flat.variables.values() if v.space == "local"}
    uniform: set[str] = set()
    changed = True
    while changed:
        changed = False
        for block in graph.blocks:
            for instruction in block:
                written, read = written_and_read(graph, instruction)
                if len(written) != 1 or written[0] in uniform or definitions[written[0]] != 1 or instruction.guard:
                    continue
                if _same_in_all(graph, instruction, read, uniform, local):
                    uniform.add(written[0])
                    changed = True
    return uniform


def _same_in_all(graph: Graph, instruction: Instruction, read: list[str], uniform: set[str], local: set[str]) -> bool:
    parameter = instruction.name == "ld" and instruction.opcode[1].startswith("param")
    if not (parameter or facts_of(graph.table, instruction).lanewise) or any(r not in uniform for r in read):
        return False
    sources = " ".join(instruction.operands[1:])
    if any(name in sources for name in VARYING) or any(word in local for word in REGISTER.findall(sources)):
        return False
    return not (instruction.name == "cvta" and "local" in instruction.opcode) and instruction.operands[0][0] != "{"
