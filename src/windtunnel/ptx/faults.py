"""What a launch did wrong, in a sentence each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windtunnel.ptx.layout import WHOLE_GRID
from windtunnel.ptx.structures import Fault, SiteCounts

KINDS = {
    1: "out-of-bounds", 2: "uninitialized-read", 3: "misaligned", 4: "shared-race", 5: "block-conflict",
    6: "shared-out-of-bounds", 7: "shared-uninitialized-read", 8: "divergent-barrier", 9: "missing-lanes",
    10: "local-out-of-bounds", 11: "assertion", 12: "trap", 13: "deadlock", 14: "warp-race", 15: "missed-barrier",
    16: "endless-wait", 17: "endless-loop", 18: "copy-under-way",
    19: "global-race", 20: "global-warp-race", 21: "read-only-cache", 22: "other-allocation",
    23: "absent-lane", 24: "same-value", 25: "partly-uninitialized-read",
}  # fmt: skip
TRAPS = {
    1: "cudaErrorIllegalAddress", 2: "cudaErrorMisalignedAddress", 3: "cudaErrorAssert", 4: "cudaErrorLaunchFailure",
    5: "cudaErrorLaunchTimeout",
}  # fmt: skip
SAME_VALUE = "same-value"
"""Of blocks that write one value to one place, such as a flag: their order does not matter."""
PARTLY_UNINITIALIZED = "partly-uninitialized-read"
"""As of a structure with room between its members, or a float4 of which three are used."""
MANY_BYTES = 32
"""From the first to the last: flags are fewer."""
REMARKS = (SAME_VALUE, PARTLY_UNINITIALIZED)
"""What is mostly meant so."""
VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}
BESIDE_ATOMICS = 3
ABSENT = "absent-lane"
"""A shuffle's, which is a fault only if it matters."""
DID = {0: "wrote", 1: "wrote", 2: "read", BESIDE_ATOMICS: "updates by atomics"}
RACES = (
    "shared-race", "warp-race", "copy-under-way", "global-race", "global-warp-race", "read-only-cache",
    "block-conflict", "same-value",
)  # fmt: skip
FAR = 1 << 40


@dataclass(frozen=True)
class KernelFault:
    kind: str
    message: str
    file: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    argument: str | None
    address: int
    count: int = 1
    volatile: bool = False
    """Whether the access says so."""


@dataclass(frozen=True)
class Incident:
    """A fault as the runtime recorded it, with what its place in the kernel says."""

    kind: str
    access: str
    size: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    other_thread: tuple[int, int, int] | None
    other_block: tuple[int, int, int] | None
    detail: int
    argument: str | None
    name: str | None
    other_line: int | None = None


def kind_of(raw: Fault, counts: SiteCounts, cells: int, grid: tuple[int, int, int]) -> str:
    """The kind of what was seen; `cells` are those that a lane's access covers.

    Where all blocks along some of the grid's dimensions write all that one of them writes, and that is more than a
    flag, an index lacks `blockIdx`: a conflict, though the values are the same.
    """
    kind = KINDS[raw.kind]
    if kind != SAME_VALUE or raw.detail < MANY_BYTES:
        return kind
    times = {1}
    for size in grid:
        times |= {size * other for other in times}
    first = counts.lanes - raw.count // max(1, cells)
    return "block-conflict" if first and counts.lanes in {first * one for one in times - {1}} else kind


def told(faults: Iterable[KernelFault]) -> tuple[KernelFault, ...]:
    """Those that are faults by themselves: of a store that is a conflict, no remark on the places where it is none."""
    found = [fault for fault in faults if fault.kind != ABSENT]
    conflicts = {(fault.file, fault.line) for fault in found if fault.kind == "block-conflict"}
    return tuple(fault for fault in found if fault.kind != SAME_VALUE or (fault.file, fault.line) not in conflicts)


def sentence(i: Incident) -> str:
    who = f"Thread {_triple(i.thread)} of block {_triple(i.block)}"
    what = f"{VERBS.get(i.access, 'accesses')} {i.size} byte{'s' * (i.size != 1)}"
    where = f" of {i.argument or i.name}" if i.argument or i.name else ""
    if i.kind == "out-of-bounds":
        if not -FAR < i.detail < FAR:
            return (
                f"{who} {what} at an address that is far from every allocation: a null, freed or uninitialized pointer"
            )
        return f"{who} {what}, {_side(i.detail)}{where}"
    if i.kind == "other-allocation":
        return f"{who} {what}, {_side(i.detail - (i.detail > 0))}{where}, in another allocation"
    if i.kind in ("shared-out-of-bounds", "local-out-of-bounds"):
        space = i.kind.split("-")[0]
        side = f"{i.detail} bytes behind the end of" if i.detail >= 0 else "outside of"
        return f"{who} {what}, {side} its {space} memory"
    if i.kind == "uninitialized-read":
        return f"{who} {what} at offset {i.detail}{where} that nothing has written"
    if i.kind == PARTLY_UNINITIALIZED:
        return f"{who} {what} at offset {i.detail}{where}, some of which nothing has written"
    if i.kind == "shared-uninitialized-read":
        return f"{who} {what} of shared memory that its block has not written"
    if i.kind == "misaligned":
        where = {1: " in shared memory", 2: " in local memory"}.get(i.detail, where)
        return f"{who} {what} at an address that is not a multiple of {i.size}{where}"
    if i.kind in RACES:
        return _raced(i, f"{who} {what}", where)
    if i.kind == "missed-barrier":
        return (
            f"{who} waits at this barrier after thread {_triple(i.other_thread)} has returned: all threads "
            f"of a block must reach it"
        )
    if i.kind == "divergent-barrier":
        beside = f" while thread {_triple(i.other_thread)} waits at line {i.other_line}" if i.other_line else ""
        return f"{who} waits at this barrier{beside}: all threads of a block must reach the same one"
    if i.kind == "missing-lanes":
        return f"{who} names lanes in its mask that are not at this instruction, or leaves itself out"
    if i.kind == ABSENT:
        return (
            f"{who} takes by this shuffle what lane {i.detail} has, which its mask does not name or which is not at "
            f"this instruction, and what the kernel writes depends on it"
        )
    if i.kind == "endless-wait":
        return (
            f"{who} waits here for what nobody writes, though all threads that the GPU holds at the same time have had "
            f"their turns"
        )
    if i.kind == "endless-loop":
        return (
            f"{who} is in a loop that does not end: its warp has spent {i.detail / 1e9:.0f} billion instructions in it"
        )
    if i.kind == "deadlock" and i.detail == WHOLE_GRID:
        return f"{who} waits for the whole grid at a barrier that other blocks never reach"
    if i.kind == "deadlock":
        return f"{who} waits at a barrier that the other threads of its block never reach"
    return f"{who} executes a trap instruction"


def _side(detail: int) -> str:
    return f"{detail} bytes behind the end" if detail >= 0 else f"{-detail} bytes before the beginning"


def _raced(i: Incident, act: str, where: str) -> str:
    """Of threads that use the same memory in no order."""
    thread = f"thread {_triple(i.other_thread)}"
    block = f"block {_triple(i.other_block)}" if i.other_block else "several other blocks"
    anyone = thread if i.other_thread else "several other threads"
    if i.kind == "copy-under-way":
        return (
            f"{act} of shared memory that an asynchronous copy of {thread} may still be writing: that thread must wait "
            f"for it (cp.async.wait_group, __pipeline_wait_prior) before a barrier"
        )
    if i.kind == "read-only-cache":
        return (
            f"{act}{where} through the cache of read-only data (__ldg, or a const __restrict__ pointer), and {block} "
            f"has written it in the same launch"
        )
    if i.kind == SAME_VALUE:
        return f"{act}{where} where {block} wrote the same value in the same launch"
    did = DID.get(i.detail, "wrote")
    if i.kind == "shared-race":
        return f"{act} of shared memory that {anyone} {did} with no barrier between them"
    if i.kind == "warp-race":
        return f"{act} of shared memory that {thread} of its warp {did} with no __syncwarp() between them"
    if i.kind == "block-conflict":
        return f"{act}{where} that {block} {did} in the same launch: blocks run in any order"
    barrier = "__syncthreads()" if i.kind == "global-race" else "__syncwarp()"
    return f"{act}{where} that {anyone} of its block {did} with no {barrier} between them"


def _triple(of: tuple[int, int, int] | None) -> str:
    return "(" + ", ".join(map(str, of or ())) + ")"
