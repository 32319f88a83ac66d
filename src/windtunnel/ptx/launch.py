"""One launch of a kernel: its memory, its blocks, what it did wrong and what it counted."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from windtunnel.ptx import layout as at
from windtunnel.ptx.counters import Counters, count
from windtunnel.ptx.dependence import SHARED_BY_ALL, UNKNOWN, Origins
from windtunnel.ptx.emitter import Site
from windtunnel.ptx.engine import Code, runtime_address
from windtunnel.ptx.faults import ABSENT, BESIDE_ATOMICS, KINDS, TRAPS, Incident, KernelFault, kind_of, sentence, told
from windtunnel.ptx.layout import Layout
from windtunnel.ptx.memory import Allocation, Memory, TouchedRange, zeroed
from windtunnel.ptx.shadows import SHADOWS, Shadow, of_a_block
from windtunnel.ptx.structures import (
    CHECK,
    COUNT,
    LANES,
    LANES_BYTES,
    ORDER_BYTES,
    OWN_BYTES,
    PAGE,
    SEEN_BYTES,
    TOUCH_BYTES,
    Context,
    Fault,
    Frame,
    Machine,
    Region,
    Residents,
    SiteCounts,
    Variants,
    aligned,
)
from windtunnel.ptx.syntax import Instruction, Parameter
from windtunnel.ptx.text import c_string, formatted
from windtunnel.ptx.variants import Prepared

Checks = Literal["all", "sample", "none"]
Triple = tuple[int, int, int]
SAMPLED_BLOCKS = 8
COUNTED_BLOCKS = 2
PARTS_OF_A_LINE = 4
"""Sectors of 32 bytes."""
MOST_INSTRUCTIONS = 1 << 32
"""Of a warp in loops; one that spends more never ends, as far as anybody waits."""
OUTPUT_BYTES = 1 << 20
FAULT_ROOM = 256
OF_ALLOCATIONS = (
    "out-of-bounds", "other-allocation", "uninitialized-read", "misaligned", "block-conflict", "global-race",
    "global-warp-race", "read-only-cache", "same-value", "partly-uninitialized-read",
)  # fmt: skip
HEADERS = (
    "/torch/include/",
    "/compiler/include/",
    "/usr/include/",
    "/usr/local/",
    "/cutlass/",
    "/cub/",
    "/thrust/",
    "/cccl/",
    "/libcudacxx/",
    "/lib/include/",
)
# <fenv.h>: to nearest, towards zero, down, up.
ROUNDING = {"x86_64": (0, 0xC00, 0x400, 0x800), "aarch64": (0, 0xC00000, 0x800000, 0x400000)}
PYTHON = {"let_go": "PyEval_SaveThread", "take_back": "PyEval_RestoreThread", "signals": "PyErr_CheckSignals"}
MAPPED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
STEP = ctypes.PYFUNCTYPE(  # it lets go of Python's lock itself, and takes it back where it looks for Ctrl-C
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_int64, ctypes.c_int64,
)  # fmt: skip
TOGETHER = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)


@dataclass(frozen=True)
class Launch:
    counters: Counters
    faults: tuple[KernelFault, ...]
    trap: str | None
    """CUDA's name of the error that ended the launch."""
    accesses: tuple[TouchedRange, ...] = ()
    variables: tuple[TouchedRange, ...] = ()
    """The allocations and the module's variables that it touched."""


def header(path: str) -> bool:
    """Whether a file belongs to a library, not to the program."""
    return any(part in path for part in HEADERS)


def place(instruction: Instruction, files: Mapping[int, str]) -> tuple[str, int]:
    """The innermost line in a file that is not a library's header."""
    location = instruction.location
    while location is not None and location.caller is not None and header(files.get(location.file, "")):
        location = location.caller
    return (files.get(location.file, "?"), location.line) if location else ("?", 0)


@dataclass
class Request:
    """What is launched, and how it is looked at."""

    grid: Triple
    block: Triple
    dynamic_shared: int
    arguments: bytes
    memory: Memory
    checks: Checks
    schedule: int
    output: Callable[[str], None]
    cooperative: bool
    most_resident: int
    """Blocks that the GPU holds at the same time."""
    sampled: bool
    """Whether only the blocks that are looked at run, unless blocks wait for each other: nobody asks for values."""

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


class Frames:
    """The frames of a block's warps; kept for the next launch, since filling them takes as long as a small kernel."""

    def __init__(self, layout: Layout, block: Triple) -> None:
        x, y, z = block
        threads = x * y * z
        warps, stride = -(-threads // LANES), LANES * layout.local_bytes
        self._memory, self.address = aligned(warps * layout.frame_bytes)
        self._local, local = aligned(warps * stride, 16)
        self.alive = (ctypes.c_uint32 * warps)()
        for warp in range(warps):
            frame = Frame.from_address(self.address + warp * layout.frame_bytes)
            frame.warp, frame.local = warp, local + warp * stride
            self.alive[warp] = (1 << min(LANES, threads - warp * LANES)) - 1
            numbers = range(warp * LANES, (warp + 1) * LANES)
            frame.thread[0][:] = [n % x for n in numbers]
            frame.thread[1][:] = [n // x % y for n in numbers]
            frame.thread[2][:] = [n // (x * y) for n in numbers]


class Run:
    """The state of one launch."""

    def __init__(
        self,
        kernel: Prepared,
        parameters: Sequence[Parameter],
        variables: Sequence[Allocation],
        files: dict[int, str],
        request: Request,
        code: Callable[[bool], Code],
        folder: Path,
        idle: dict[Triple, list[Frames]],
    ) -> None:
        self.kernel, self.parameters, self.files, self.request = kernel, parameters, files, request
        self.code, self.folder, self.idle = code, folder, idle
        self.kept: list[object] = []
        self.shadows: list[Shadow] = []
        self.table = list(variables)
        block, self.block_of_parameters = aligned(len(request.arguments) + 64)
        ctypes.memmove(self.block_of_parameters, request.arguments, len(request.arguments))
        self.kept.append(block)
        self.regions = self._regions()
        self.machine = Machine()
        self.context = Context()
        self.output = self._zeroed(OUTPUT_BYTES)
        self.faults = (Fault * FAULT_ROOM)()
        # Both variants number their sites alike; compiling the second adds none.
        self.instrumented = code(True)
        self.sites = list(kernel.sites)
        self.site_counts = (SiteCounts * max(len(self.sites), 1))()
        self.block_counts = (ctypes.c_uint64 * (2 * len(kernel.graph.blocks) + 2))()
        if request.checks != "none":
            self._confine()
        self._fill_machine()
        self._fill_context()

    def _addresses(self) -> list[tuple[int, Parameter, int]]:
        """Words of the arguments that may be pointers."""
        found = []
        for parameter in self.parameters:
            for offset in range(parameter.offset, parameter.offset + parameter.size - 7, 8):
                value = int.from_bytes(self.request.arguments[offset : offset + 8], "little")
                found.append((value, parameter, offset))
        return found

    def addresses(self) -> list[int]:
        """What the arguments may point to."""
        return [value for value, _, _ in self._addresses()]

    def _used(self, places: Iterable[Origins]) -> set[int] | None:
        """Where the allocations begin that the kernel may use at such places; None: nobody can tell."""
        found: set[int] = set()
        for origins in places:
            begins = set(map(self._begin, origins)) - {0}
            if not begins and UNKNOWN in origins:
                return None
            found |= begins
        return found

    def reads_and_writes(self, allocation: Allocation) -> bool:
        """Whether it may do both, as far as anybody can tell."""
        places, start = self.kernel.accessed, allocation.start
        read, written = self._used(places.loaded), self._used(places.stored | places.atomic)
        return (read is None or start in read) and (written is None or start in written)

    def _begin(self, origin: int | str) -> int:
        """Where the allocation begins that a parameter (by its offset) or a variable names; or 0."""
        if isinstance(origin, str):
            index = self.kernel.layout.variables.get(origin)
            return 0 if index is None else self.table[index].start
        found = self.request.memory.allocation(int.from_bytes(self.request.arguments[origin : origin + 8], "little"))
        return found.start if found else 0

    def _confine(self) -> None:
        """Where addresses are computed from pointers of the arguments, accesses belong to what these point to."""
        known: dict[Origins, list[tuple[int, int]]] = {}
        for site, counts in zip(self.sites, self.site_counts, strict=False):
            origins = self.kernel.accessed.by.get(site.instruction, frozenset({UNKNOWN}))
            if UNKNOWN in origins or site.space not in SHARED_BY_ALL:
                continue
            if origins not in known:
                known[origins] = self._own(origins)
            if known[origins]:
                (counts.own_low, counts.own_high), *others = known[origins]
                if others:
                    ends = (ctypes.c_uint64 * (2 * len(others)))(*(end for one in others for end in one))
                    self.kept.append(ends)
                    counts.others, counts.other_count = ctypes.addressof(ends), len(others)

    def _own(self, origins: Origins) -> list[tuple[int, int]]:
        begins, found = set(map(self._begin, origins)) - {0}, []
        for index, region in enumerate(self.regions):
            if region.start in begins:
                low, before = region.start, self.regions[index - 1] if index else None
                if before and before.start + before.size == low and low in self.addresses():
                    low = before.start  # a pointer behind the end of what lies before
                found.append((low, region.start + region.size))
        return found

    def _meant(self, address: int, site: int) -> int:
        """An address in the allocation, of those that a site's pointers may belong to, that is nearest to another;
        itself where nobody can tell."""
        counts = self.site_counts[site]
        if not counts.own_high:
            return address
        others = ctypes.cast(counts.others, ctypes.POINTER(ctypes.c_uint64)) if counts.other_count else ()
        ends = [(counts.own_low, counts.own_high)]
        ends += [(others[2 * k], others[2 * k + 1]) for k in range(counts.other_count)]
        nearest = min(ends, key=lambda one: max(one[0] - address, address - one[1] + 1))
        return int(nearest[1]) - 1

    def _regions(self) -> list[Allocation]:
        own = [v for v in self.table if v.size]
        own.append(Allocation(self.block_of_parameters, max(len(self.request.arguments), 1), "the kernel's parameters"))
        return sorted([*self.request.memory.allocations(), *own], key=lambda a: a.start)

    def _fill_machine(self) -> None:
        pointers = {
            found.start for value, _, _ in self._addresses() if (found := self.request.memory.allocation(value))
        }
        pointers |= {v.start for v in self.table}
        self.machine.base, self.round = SHADOWS.numbers(self.request.blocks + 1)
        self.machine.several = self.machine.base + self.request.blocks + 1
        stores = [s.size for s in self.sites if s.kind != "load" and s.space in ("global", "generic")]
        grain = self.machine.global_grain = min([2, *(size.bit_length() - 1 for size in stores)])
        places = self.kernel.accessed
        loaded, stored = self._used(places.loaded), self._used(places.stored)
        written, pool = self._used(places.stored | places.atomic), 0
        regions = (Region * max(len(self.regions), 1))()
        for index, region in enumerate(self.regions):
            entry = regions[index]
            entry.low, entry.high = region.start, region.start + region.size
            if region.blank is not None:
                view = (ctypes.c_char * region.size).from_buffer(region.blank)
                self.kept.append(view)
                entry.blank = ctypes.addressof(view)
            if region.start in pointers and self.request.checks != "none":
                cells = (region.size >> grain) + 2
                if written is None or region.start in written:  # else nothing conflicts there
                    entry.writer = self._shadow("blocks", 4 * cells)
                if entry.writer and (loaded is None or region.start in loaded):
                    entry.reader = self._shadow("blocks", 4 * cells)
                if entry.reader and (stored is None or region.start in stored):
                    pages = cells // PAGE + 1
                    entry.pages, pool = self._zeroed(8 * pages), pool + pages
        touches = TOUCH_BYTES * -(-self.request.threads // LANES) * self.kernel.graph.apart_at_barriers
        self.machine.pool = self._zeroed((OWN_BYTES + touches) * PAGE * pool)
        shared = self.kernel.layout.shared_bytes + self.request.dynamic_shared + 64
        machine = self.machine
        machine.regions, machine.region_count = regions, len(self.regions)
        machine.faults, machine.fault_room = self.faults, FAULT_ROOM
        machine.output, machine.output_room = self.output, OUTPUT_BYTES
        if self.request.checks != "none":
            self.own = of_a_block(shared, self.request.threads, self.kernel.graph)
            machine.shadow = self._zeroed(self.own.size)
            machine.sums, machine.unfenced = int(self.kernel.graph.sums), int(self.kernel.graph.unfenced)
            machine.atomics = int(not self.kernel.graph.locks and any(s.kind == "atomic" for s in self.sites))
            machine.copies, machine.clocks = self.own.copies, self.own.clocks
            machine.lanes = self._zeroed(LANES_BYTES) if self.kernel.graph.lanes_apart else None
        machine.epoch, machine.shared_room = 1, shared
        narrow = any(0 < site.size < 4 and site.space in ("shared", "generic") for site in self.sites)
        machine.grain = 0 if narrow else 2
        machine.most_loops = MOST_INSTRUCTIONS // at.LOOPS
        for name, function in PYTHON.items():
            setattr(machine, name, ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p))
        if self.kernel.graph.fenced and self.request.checks != "none":
            machine.order = self._zeroed(ORDER_BYTES * self.request.blocks)
        machine.seen = self._shadow("lines", SEEN_BYTES)
        mapped = getattr(self.request.memory, "mapped", None)
        if mapped is not None:
            callback = MAPPED(lambda address: int(mapped(address)))
            self.kept.append(callback)
            machine.mapped = ctypes.cast(callback, ctypes.c_void_p)
        modes = ROUNDING.get(platform.machine(), ROUNDING["aarch64" if "arm" in platform.machine() else "x86_64"])
        table = (ctypes.c_int64 * 4)(*modes)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(runtime_address(self.folder, "wt_modes"))(ctypes.addressof(table))

    def _shadow(self, purpose: str, size: int) -> int:
        shadow = SHADOWS.take(purpose, size, dense=self.request.checks == "all")
        self.shadows.append(shadow)
        return shadow.address

    def _zeroed(self, size: int, dense: bool = False) -> int:
        memory = zeroed(size, dense)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        self.kept += [memory, view]
        return ctypes.addressof(view)

    def _fill_context(self) -> None:
        request, layout, context = self.request, self.kernel.layout, self.context
        context.parameters = self.block_of_parameters
        shared, context.shared_base = aligned(layout.shared_bytes + request.dynamic_shared + 128, 1024)
        context.grid[:], context.size[:] = list(request.grid), list(request.block)
        context.dynamic_shared = request.dynamic_shared
        context.shared_bytes = layout.shared_bytes + request.dynamic_shared
        context.threads, context.local_bytes = request.threads, layout.local_bytes
        context.block_counts, context.sites = self.block_counts, self.site_counts
        context.machine = ctypes.pointer(self.machine)
        context.warps = -(-request.threads // LANES)
        table = (ctypes.c_uint64 * max(len(self.table), 1))(*(v.start for v in self.table))
        context.variables = table
        context.cooperative = int(request.cooperative)
        context.schedule, context.frame_bytes = request.schedule, layout.frame_bytes
        self.kept += [shared, table]

    def run(self) -> Launch:
        idle = self.idle.setdefault(self.request.block, [])
        frames = idle.pop() if idle else Frames(self.kernel.layout, self.request.block)
        launch = self._run(frames)
        idle.append(frames)
        for shadow in self.shadows:
            SHADOWS.give(shadow, self.round)
        return launch

    def _run(self, frames: Frames) -> Launch:
        looked_at = self._looked_at()
        self.whole = not looked_at
        checking = COUNT | (CHECK if self.request.checks != "none" else 0)
        if self.kernel.graph.asks:
            self._together(checking, looked_at, frames)
        else:
            self._in_turn(checking, looked_at, frames)
        counted = len(looked_at) if looked_at else self.request.blocks
        if looked_at:
            self._forget_blanks()
        self._print()
        faults = self._faults()
        sites = [
            (site, (c.requests, c.lanes, c.sectors, c.wavefronts, c.bytes, c.lines))
            for site, c in zip(self.sites, self.site_counts, strict=False)
        ]
        counters = count(
            self.kernel.graph, list(self.block_counts), sites, blocks=self.request.blocks, counted=counted,
            shared_bytes=self.context.shared_bytes, threads=self.request.threads,
            distinct=(self.machine.distinct_loads, self.machine.distinct_stores), touched=self._touched(),
            busiest=self._busiest(), grid_barriers=self.machine.grid_barriers,
        )  # fmt: skip
        trap = TRAPS.get(self.context.trap)
        return Launch(counters, faults, trap, self._accesses(), self._accesses(variables=True))

    def _busiest(self) -> tuple[int, bool]:
        """How often atomics met at the busiest address, and whether those of several blocks did."""
        if all(site.kind != "atomic" for site in self.sites):
            return 0, False
        return max((one.count, bool(one.several)) for one in self.machine.hot)

    def _touched(self) -> tuple[int, int]:
        """Bytes that the launch read and wrote, each once: at most the allocations, from first to last one touched."""
        found = self._accesses()
        return sum(a.high - a.low for a in found if a.read), sum(a.high - a.low for a in found if a.written)

    def _accesses(self, variables: bool = False) -> tuple[TouchedRange, ...]:
        own, found = {v.start for v in self.table if v.size}, []
        for index, region in enumerate(self.regions):
            entry = self.machine.regions[index]
            if not entry.touched or (region.start in own) != variables or region.start == self.block_of_parameters:
                continue
            low, high = seen = entry.touched_low, entry.touched_high
            if not self.whole:  # blocks without counts look at an allocation, not at bytes
                low, high = region.start, region.start + region.size
            traced = region.traced and self.whole and not self.kernel.graph.tells_host
            pages = self._pages(region, entry) if traced and entry.writer else ()
            read, written = bool(entry.touched & 1), bool(entry.touched & 2)
            found.append(TouchedRange(region.start, low, high, read, written, pages, seen))
        return tuple(found)

    def _forget_blanks(self) -> None:
        """Blocks that are not looked at do not say which bytes they write: all of an allocation may be written."""
        for entry in self.machine.regions[: len(self.regions)]:
            if entry.blank and entry.touched & 2:
                ctypes.memset(entry.blank, 0, entry.high - entry.low)

    def _pages(self, region: Allocation, entry: Region) -> tuple[tuple[int, int], ...]:
        """The pages of which this launch has written all that belongs to the allocation."""
        cells = -(-region.size >> self.machine.global_grain)
        numbers = np.ctypeslib.as_array(ctypes.cast(entry.writer, ctypes.POINTER(ctypes.c_uint32)), (cells,))
        by = numbers & np.uint32(0x3FFFFFFF)  # without the runtime's own bits
        written = (by > self.machine.base) & (by <= self.machine.several)
        found, step = [], mmap.PAGESIZE
        for low in range(region.start - region.start % step, region.start + region.size, step):
            first, last = max(low - region.start, 0), min(low + step - region.start, region.size)
            if written[first >> self.machine.global_grain : -(-last >> self.machine.global_grain)].all():
                found.append((low, low + step))
        return tuple(found)

    def _looked_at(self) -> list[int]:
        """The blocks that are checked and counted; none: all of them."""
        blocks = self.request.blocks
        wanted = SAMPLED_BLOCKS if self.request.checks == "sample" else COUNTED_BLOCKS
        if self.request.checks == "all" or blocks <= wanted + 1:
            return []
        spread = [i * (blocks - 1) // (wanted - 1) for i in range(wanted)]
        # Rows begin at another part of a line from block to block, over and over: each part in its turn.
        inner = [number - number % PARTS_OF_A_LINE + i % PARTS_OF_A_LINE for i, number in enumerate(spread)]
        return sorted({0, *inner[1:-1], blocks - 1})

    def _in_turn(self, checking: int, looked_at: list[int], frames: Frames) -> None:
        """One block after another, those that are looked at first."""
        blocks = self.request.blocks
        self._blocks(self.instrumented, checking, looked_at, 0, len(looked_at) if looked_at else blocks, frames)
        previous = -1
        for number in [*looked_at, blocks] if looked_at else []:
            if number - previous > 1 and not self.context.trap and not self.request.sampled:
                self._blocks(self.code(False), 0, [], previous + 1, number - previous - 1, frames)
            previous = number

    def _together(self, checking: int, looked_at: list[int], frames: Frames) -> None:
        """Blocks that wait for each other, as many at the same time as the GPU holds."""
        context, layout = self.context, self.kernel.layout
        room = max(1, min(self.request.blocks, self.request.most_resident))
        shared = -(-(context.shared_bytes + 128) // 1024) * 1024
        warps, local = context.warps * room, LANES * layout.local_bytes
        residents, variants = Residents(), Variants()
        self.machine.together = 1
        residents.room = room
        residents.frames = self._zeroed(warps * layout.frame_bytes)
        residents.local, residents.local_step = self._zeroed(warps * local), local
        residents.shared, residents.shared_step = self._zeroed(room * shared), shared
        if self.request.checks != "none":
            residents.shadow_step = self.own.size
            residents.shadow = self._zeroed(room * residents.shadow_step)
        residents.block, residents.at_grid = self._zeroed(8 * room), self._zeroed(4 * room)
        codes = [self.instrumented, self.code(False) if looked_at else self.instrumented]
        variants.whole[:] = [code.address("wt_whole") for code in codes]
        variants.partial[:] = [code.address("wt_partial") for code in codes]
        variants.checking = checking
        if looked_at:
            chosen = self._zeroed(self.request.blocks)
            for number in looked_at:
                ctypes.memset(chosen + number, 1, 1)
            variants.looked_at = chosen
        run = TOGETHER(runtime_address(self.folder, "wt_run_together"))
        run(
            ctypes.addressof(context), frames.address, ctypes.addressof(residents), ctypes.addressof(variants),
            ctypes.addressof(frames.alive), self.request.blocks,
        )  # fmt: skip

    def _blocks(
        self,
        code: Code,
        checking: int,
        numbers: list[int],
        first: int,
        count: int,
        frames: Frames,
    ) -> None:
        self.context.checking = checking
        listed = (ctypes.c_int64 * len(numbers))(*numbers) if numbers else None
        run = STEP(runtime_address(self.folder, "wt_run"))
        run(
            ctypes.addressof(self.context), frames.address, code.address("wt_whole"), code.address("wt_partial"),
            ctypes.addressof(frames.alive), ctypes.addressof(listed) if listed is not None else None, first, count,
        )  # fmt: skip

    def _print(self) -> None:
        size = min(self.machine.output_size, OUTPUT_BYTES)
        data, position = ctypes.string_at(self.output, size), 0
        while position + 16 <= size:
            pattern = int.from_bytes(data[position : position + 8], "little")
            room = int.from_bytes(data[position + 8 : position + 16], "little")
            position += 16
            self.request.output(formatted(c_string(pattern), data[position : position + room]))
            position += room

    # Faults

    def _faults(self) -> tuple[KernelFault, ...]:
        found = [self._fault(self.faults[i]) for i in range(self.machine.fault_count)]
        return told(fault for fault in found if fault is not None)

    def absent(self) -> list[tuple[int, KernelFault]]:
        """Shuffles that take what is undefined, by their numbers."""
        raw = [self.faults[i] for i in range(self.machine.fault_count)]
        found = [(one.site, self._fault(one)) for one in raw if KINDS[one.kind] == ABSENT]
        return [(site, fault) for site, fault in found if fault is not None]

    def _fault(self, raw: Fault) -> KernelFault | None:
        site = self.sites[raw.site]
        kind = kind_of(raw, self.site_counts[raw.site], site.size >> self.machine.global_grain, self.request.grid)
        file, line = self._place(site)
        block, thread = self._block(raw.block), self._thread(raw.thread)
        if kind == "assertion":
            message = f"Assertion `{c_string(raw.address)}` failed at {c_string(raw.detail)}:{raw.other}"
            return KernelFault(kind, message, c_string(raw.detail), raw.other, block, thread, None, 0, raw.count)
        other_line = None
        if kind == "divergent-barrier":
            other_file, other_line = self._place(self.sites[raw.address])
            if (other_file, other_line) == (file, line):
                return None
            if (other_file, other_line) < (file, line):
                line, other_line = other_line, line
                file, thread, raw.other = other_file, self._thread(raw.other), raw.thread
        elsewhere = kind == "misaligned" and raw.detail
        asks = any(site.instruction.has(word) for word in ("volatile", "relaxed", "acquire"))
        if kind in ("shared-race", "warp-race", "block-conflict") and raw.detail == BESIDE_ATOMICS and asks:
            return None
        if kind in ("global-race", "global-warp-race") and asks:
            return None
        outside = kind in ("other-allocation", "out-of-bounds")
        meant = self._meant(raw.address, raw.site) if outside else raw.address
        argument, name = (None, None) if elsewhere or kind not in OF_ALLOCATIONS else self.argument(meant)
        incident = Incident(
            kind=kind, access=site.kind, size=site.size, block=block, thread=thread,
            other_thread=self._thread(raw.other) if raw.other >= 0 else None,
            other_block=self._block(raw.other) if raw.other >= 0 else None,
            detail=raw.detail, argument=argument, name=name, other_line=other_line,
        )  # fmt: skip
        return KernelFault(
            kind,
            sentence(incident),
            file,
            line,
            block,
            thread,
            argument or name,
            raw.address,
            raw.count,
            volatile=site.instruction.has("volatile"),
        )

    def _place(self, site: Site) -> tuple[str, int]:
        return place(site.instruction, self.files)

    def _block(self, number: int) -> Triple:
        x, y, _ = self.request.grid
        return number % x, number // x % y, number // (x * y)

    def _thread(self, number: int) -> Triple:
        x, y, _ = self.request.block
        return number % x, number // x % y, number // (x * y)

    def argument(self, address: int) -> tuple[str | None, str | None]:
        """The parameter that points to the memory, or the name of the allocation."""
        below = [r for r in self.regions if r.start <= address]
        if not below:
            return None, None
        region = below[-1]
        for value, parameter, _ in self._addresses():
            if region.start <= value < region.start + region.size:
                index = next(i for i, p in enumerate(self.parameters) if p is parameter)
                return f"argument {index}", region.name or None
        return None, region.name or None
