"""The same requests under other allocator settings: what would have been reserved, wasted and asked of the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from windtunnel.analysis.replay import NO_LIMIT, TokenEvents
from windtunnel.analysis.snapshot_file import Event, Snapshot, read
from windtunnel.analysis.start_state import start_segments
from windtunnel.errors import UsageError
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.memory.settings import Settings, parse
from windtunnel.trace.plain import Json

NUMBERS = ("stoull", "stod")
"""What PyTorch prints for a word that is not a number: the C++ function that could not read it."""
POINTS = 400
"""Points of a timeline, at most."""


@dataclass(frozen=True)
class WhatIfRow:
    """One setting's outcome. Sizes in bytes; `driver_calls` counts cudaMalloc, cudaFree and (un)mapped pages.

    `peak_requested_bytes` is the most that the program asked for at once, `fragmentation` the part of the peak
    reservation that goes beyond it: 1 - peak requested / peak reserved. `over_bytes` is by how much what is reserved
    without a limit exceeds the device, 0 where every request fits. `timeline` holds (event, allocated bytes,
    reserved bytes) for a plot: of each stretch of events, the moment with the most reserved.
    """

    device: int
    alloc_conf: str
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fragmentation: float
    end_inactive_split_bytes: int
    driver_calls: int
    retries: int
    out_of_memory: int
    over_bytes: int
    timeline: tuple[tuple[int, int, int], ...] = ()

    def to_json(self) -> Json:
        """Plain data for `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class WhatIf:
    """A table: the recorded settings first, then the others, for every device of a snapshot."""

    path: str
    memory_bytes: int | None
    start_blocks: int
    rows: tuple[WhatIfRow, ...]

    def to_json(self) -> Json:
        """Plain data for `--json`."""
        return {
            "path": self.path,
            "memory_bytes": self.memory_bytes,
            "start_blocks": self.start_blocks,
            "rows": [row.to_json() for row in self.rows],
        }


def what_if(
    path: str | Path,
    confs: Iterable[str],
    memory_bytes: int | None = None,
    tell: Callable[[str], None] = lambda conf: None,
) -> WhatIf:
    """The recorded events under each of `confs` (texts of PYTORCH_CUDA_ALLOC_CONF), beside the recorded settings.

    Blocks that were there before the recording are allocated first, in order of address, because how they came about
    is not known; `start_blocks` counts them. `memory_bytes` limits the device; a request that does not fit is counted
    and left out. `tell` hears the settings that come next. Raises FileFormatError for a file that is no snapshot,
    UsageError for a setting that PyTorch refuses.
    """
    texts = list(confs)
    settings = []
    for text in texts:
        try:
            settings.append(parse(text))
        except (ValueError, IndexError, RuntimeError) as error:
            why = str(error).rstrip(".")
            if why in NUMBERS:
                why = f"a number was expected (PyTorch's error is {why!r})"
            raise UsageError(f"The allocator settings {text!r} cannot be used: {why}.") from None
        if settings[-1].backend != "native":
            raise UsageError(
                f"The allocator settings {text!r} cannot be used: {settings[-1].backend} is an allocator of CUDA's "
                "driver and not emulated. Ask about settings of the native one."
            )
    snapshots = read(path)
    rows = []
    for snapshot in snapshots:
        for text, chosen in (("the recorded settings", snapshot.settings), *zip(texts, settings, strict=True)):
            tell(text)
            rows.append(outcome(snapshot, chosen, memory_bytes))
    start_blocks = sum(
        block["state"] != "inactive"
        for snapshot in snapshots
        for segment in start_segments(snapshot)
        for block in segment["blocks"]
    )
    return WhatIf(str(path), memory_bytes, start_blocks, tuple(rows))


class _Run:
    """One device's events through one allocator, without comparing anything."""

    def __init__(self, snapshot: Snapshot, settings: Settings, memory_bytes: int | None) -> None:
        self.events = TokenEvents()
        self.driver = DeviceMemory(memory_bytes or NO_LIMIT)
        self.allocator = CachingAllocator(snapshot.device, self.driver, settings, self.events)
        self.live: dict[int, Block] = {}
        self.pending: dict[int, list[bool]] = {}
        self.out_of_memory = 0
        emptied = _emptied(snapshot.events)
        self.timeline: list[tuple[int, int, int]] = []
        for segment in start_segments(snapshot):
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.malloc(block["address"], block["requested_size"], segment["stream"])
        stretch = max(1, -(-len(snapshot.events) // POINTS))
        best = (0, 0, 0)
        for index, event in enumerate(snapshot.events):
            if index in emptied:
                self.allocator.empty_cache()
            self.act(event)
            everything = self.allocator.statistics.all
            if everything.reserved >= best[2]:
                best = (index, everything.bytes, everything.reserved)
            if (index + 1) % stretch == 0 or index + 1 == len(snapshot.events):
                self.timeline.append(best)
                best = (index, everything.bytes, 0)

    def malloc(self, address: int, size: int, stream: int) -> None:
        """Allocate what the recording had at `address`."""
        block = self._asked(size, stream)
        if block is not None:
            self.live[address] = block

    def attempt(self, size: int, stream: int) -> None:
        """Ask for memory, and give it back at once."""
        block = self._asked(size, stream) if 0 < size < NO_LIMIT else None
        if block is not None:
            self.allocator.free(block)

    def _asked(self, size: int, stream: int) -> Block | None:
        """A block of so many bytes; none where there is no room, which is counted."""
        try:
            return self.allocator.malloc(size, stream)
        except OutOfMemory:
            self.out_of_memory += 1
            return None

    def act(self, event: Event) -> None:
        """Do what the program did; a free waits for its completion in the recording."""
        if event.action == "alloc":
            self.malloc(event.address, event.size, event.stream)
        elif event.action == "oom":  # it failed in the recording; what the program did about it follows
            self.attempt(event.size, event.stream)
        elif event.action == "free_requested" and event.address in self.live:
            block = self.live.pop(event.address)
            self.allocator.record_stream(block, -1 - event.address)
            self.allocator.free(block)
            self.pending[event.address] = self.events.last
        elif event.action == "free_completed":
            token = self.pending.pop(event.address, None)
            if token is not None:
                token[0] = True
                self.allocator.process_events()
            elif event.address in self.live:
                self.allocator.free(self.live.pop(event.address))


def _emptied(events: Sequence[Event]) -> set[int]:
    """Where the program emptied the cache: runs of freed segments that no request for a segment follows at once."""
    found = set()
    index = 0
    while index < len(events):
        first = index
        while index < len(events) and events[index].action in ("segment_free", "segment_unmap"):
            index += 1
        following = events[index].action if index < len(events) else "end"
        if index > first and following not in ("segment_alloc", "segment_map", "oom"):
            found.add(first)
        index += 1
    return found


def outcome(snapshot: Snapshot, settings: Settings, memory_bytes: int | None) -> WhatIfRow:
    """One device's events under one setting, on a device with so much memory (None: without a limit)."""
    run = _Run(snapshot, settings, memory_bytes)
    statistics = run.allocator.statistics
    everything = statistics.all
    driver = run.driver
    reserved = everything.reserved_peak
    return WhatIfRow(
        device=snapshot.device,
        alloc_conf=settings.text,
        peak_requested_bytes=everything.requested_peak,
        peak_allocated_bytes=everything.bytes_peak,
        peak_reserved_bytes=reserved,
        fragmentation=1.0 - everything.requested_peak / reserved if reserved else 0.0,
        end_inactive_split_bytes=everything.split_bytes,
        driver_calls=driver.malloc_calls + driver.free_calls + driver.map_calls + driver.unmap_calls,
        retries=statistics.num_alloc_retries,
        out_of_memory=run.out_of_memory,
        over_bytes=_over_bytes(snapshot, settings, memory_bytes) if run.out_of_memory and memory_bytes else 0,
        timeline=tuple(run.timeline),
    )


def _over_bytes(snapshot: Snapshot, settings: Settings, memory_bytes: int) -> int:
    everything = _Run(snapshot, settings, None).allocator.statistics.all
    return max(0, everything.reserved_peak - memory_bytes)
