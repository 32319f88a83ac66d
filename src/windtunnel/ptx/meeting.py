"""Where the lanes of a warp meet: the instructions at which lanes wait for others, and the order of the blocks.

Lanes that are apart run in the order of their blocks, the lowest first. Each block comes after those that lead to it,
and a loop's blocks before what follows the loop, so that lanes meet again where their paths join."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.ptx.syntax import Instruction

COLLECTIVES = ("shfl", "vote", "match", "redux", "elect")
INDEPENDENT = 70
"""From this target on lanes are scheduled on their own (Volta): those of several branches meet at the same kind of
instruction that names the same lanes, as the PTX guide says of `shfl.sync` and its like."""
MASKS = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1, "bar": 0, "barrier": 0}
"""The operand that names the lanes."""
ALL_LANES = ("-1", "0xffffffff", "4294967295")
"""That operand, where it surely names all."""


def meets(instruction: Instruction) -> bool:
    """Whether lanes wait at it for those that it names."""
    if instruction.name in ("bar", "barrier"):
        return instruction.has("warp")
    return instruction.name in ("mma", "ldmatrix") or (instruction.name in MASKS and instruction.has("sync"))


def collective(instruction: Instruction) -> bool:
    """Whether lanes that stand at several of its kind may meet."""
    return instruction.name in COLLECTIVES and instruction.has("sync")


def meet_in_branches(blocks: Sequence[Sequence[Instruction]], successors: Sequence[Sequence[int]]) -> bool:
    """Whether there are two such instructions of a kind of which neither always comes first."""
    at: dict[tuple[str, ...], set[int]] = {}
    for index, block in enumerate(blocks):
        for instruction in block:
            if collective(instruction):
                at.setdefault(instruction.opcode, set()).add(index)
    for places in at.values():
        without = {place: _reached_without(place, successors) for place in places} if len(places) > 1 else {}
        if any(a in without[b] and b in without[a] for a in without for b in without if a < b):
            return True
    return False


def _reached_without(place: int, successors: Sequence[Sequence[int]]) -> set[int]:
    """The blocks that the first one leads to by other ways than through a block."""
    found, work = {0}, [0] if place else []
    while work:
        new = set(successors[work.pop()]) - found - {place}
        found |= new
        work += new
    return found - {place}


def mask_operand(instruction: Instruction) -> str:
    """The lanes that it names; instructions of tensor cores mean all."""
    return instruction.operands[MASKS[instruction.name]] if instruction.name in MASKS else "-1"


def ranks(successors: Sequence[Sequence[int]]) -> list[int]:
    """The place of each block in a weak topological order (Bourdoncle 1993); the kernel's end is the last."""
    count = len(successors)
    order: list[int] = []
    work = [list(range(count))]
    while work:
        nodes = work.pop()
        parts = _components(nodes, successors)
        if all(len(part) == 1 for part in parts):
            order += [part[0] for part in parts]
            continue
        later: list[list[int]] = []
        for part in parts:
            inside = set(part)
            entered = {s for n in nodes if n not in inside for s in successors[n]} & inside
            head = min(entered or inside)
            later += [[head], sorted(inside - {head})]
        work += [part for part in reversed(later) if part]
    place = {node: rank for rank, node in enumerate(order)}
    return [*(place[i] for i in range(count)), count]


def _components(nodes: list[int], successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components of the blocks, in topological order (Tarjan 1972)."""
    among = set(nodes)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    open_: set[int] = set()
    found: list[list[int]] = []
    for root in reversed(nodes):
        if root in number:
            continue
        path = [root]
        left: dict[int, list[int]] = {}
        while path:
            node = path[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
                open_.add(node)
                left[node] = sorted(s for s in successors[node] if s in among)
            while left[node]:
                following = left[node].pop()
                if following not in number:
                    path.append(following)
                    break
                if following in open_:
                    low[node] = min(low[node], number[following])
            if path[-1] != node:
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[node])
            if low[node] == number[node]:
                at = stack.index(node)
                found.append(stack[at:])
                open_ -= set(stack[at:])
                del stack[at:]
    return found[::-1]
