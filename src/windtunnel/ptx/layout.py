"""Where things lie: the launch's context and a warp's frame, as `runtime/runtime.h` declares them too."""

from __future__ import annotations

from ctypes import sizeof
from dataclasses import dataclass

from windtunnel.ptx.calls import Flat
from windtunnel.ptx.structures import Context, Frame, Machine, SiteCounts
from windtunnel.ptx.syntax import BYTES, Declaration, Source
from windtunnel.ptx.values import LANES

PARAMETERS, SHARED_BASE = Context.parameters.offset, Context.shared_base.offset
BLOCK_INDEX, GRID_SIZE, BLOCK_SIZE = Context.block.offset, Context.grid.offset, Context.size.offset
DYNAMIC_SHARED, SHARED_BYTES, TRAP = Context.dynamic_shared.offset, Context.shared_bytes.offset, Context.trap.offset
BLOCK_COUNTS, SITES, VARIABLES = Context.block_counts.offset, Context.sites.offset, Context.variables.offset
MACHINE, WARPS, COOPERATIVE = Context.machine.offset, Context.warps.offset, Context.cooperative.offset
LAST, STOPPED = Context.last.offset, Context.stopped.offset
EPOCH = Machine.epoch.offset
PROGRAM_COUNTERS, ALIVE, WAITING, MODE = (
    Frame.counter.offset,
    Frame.alive.offset,
    Frame.waiting.offset,
    Frame.mode.offset,
)
RESUME, WARP, LOCAL, BUDGET = Frame.resume.offset, Frame.warp.offset, Frame.local.offset, Frame.budget.offset
BARRIER, BARRIER_THREADS = Frame.barrier.offset, Frame.barrier_count.offset
BARRIER_SITE, VOTE, VOTES = Frame.barrier_site.offset, Frame.vote.offset, Frame.votes.offset
AGREEMENT, SPINS, THREAD_INDEX = Frame.agreement.offset, Frame.spins.offset, Frame.thread.offset
HELD, PASSES, FORCED = Frame.held.offset, Frame.passes.offset, Frame.forced.offset
TOGETHER, OFFERED = Frame.together.offset, Frame.offered.offset
"""The lanes that have met, and what each has brought."""
REGISTERS = sizeof(Frame)
SITE_BYTES = sizeof(SiteCounts)
LOOPS = 1 << 22
WHOLE_GRID = 16
"""The number of the barrier of all blocks, beside a block's 16."""
WHOLE, PARTIAL = "whole", "partial"
AT_BARRIER, TO_PARTIAL, TO_WHOLE, ASKS, FINISHED = 1, 2, 3, 4, -1
ENDED = 2
"""The mode of a warp that has ended."""


def register_type(kind: str) -> str:
    """The LLVM type of a register: an integer of its width, whatever its name says."""
    return "i1" if kind == "pred" else f"i{max(16, 8 * BYTES[kind])}"


@dataclass
class Layout:
    shared: dict[str, int]
    shared_bytes: int
    dynamic: set[str]
    local: dict[str, int]
    local_bytes: int
    variables: dict[str, int]
    """Index of each variable of the module in the context's table of addresses."""
    slots: dict[str, int]
    frame_bytes: int


def lay_out(source: Source, flat: Flat) -> Layout:
    shared: dict[str, int] = {}
    dynamic = {v.name for v in source.variables.values() if v.space == "shared" and v.unsized}
    own = [v for v in flat.variables.values() if v.space == "shared"]
    named = {word for s in flat.statements for o in getattr(s, "operands", ()) for word in _words(o)}
    from_module = [v for v in source.variables.values() if v.space == "shared" and not v.unsized and v.name in named]
    end = _place(shared, own + from_module)
    local: dict[str, int] = {}
    local_end = _place(local, [v for v in flat.variables.values() if v.space == "local"])
    slots: dict[str, int] = {}
    frame = REGISTERS
    for name, kind in flat.registers.items():
        slots[name] = frame
        frame += 64 if kind == "pred" else -(-BYTES[kind] * LANES // 64) * 64
    in_memory = [name for name, v in source.variables.items() if v.space in ("global", "const")]
    return Layout(
        shared,
        -(-end // 16) * 16,
        dynamic,
        local,
        -(-local_end // 16) * 16,
        {name: i for i, name in enumerate(in_memory)},
        slots,
        frame,
    )


def _words(operand: str) -> list[str]:
    return operand.replace("[", " ").replace("]", " ").replace("+", " ").replace(",", " ").replace("{", " ").split()


def _place(offsets: dict[str, int], variables: list[Declaration]) -> int:
    end = 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return end
