"""Replay a memory snapshot that was recorded on a real GPU through windtunnel's allocator, and compare.

The recorded requests and frees go through the allocator in order; where it places each block, when it asks the driver
for memory, and what it holds at the end is its own doing. Addresses are compared through a map from recorded to
replayed pages that grows with each pair of segments, so nothing depends on where the driver put them, except one
thing: among free blocks of equal size the allocator takes the lowest address. With `driver="recorded"` the driver (not
the allocator) answers with the recorded addresses; with "modelled" it gives its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from windtunnel.analysis.snapshot_file import Event, Snapshot, read
from windtunnel.analysis.start_state import PAGE, start_segments
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.blocks import DEFAULT_POOL, Block, PoolId
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.trace.plain import Json

Driver = Literal["modelled", "recorded"]
NO_LIMIT = 1 << 46
"""Device memory of a replay without a limit, bytes."""


class TokenEvents:
    """Events that complete when the recording says so."""

    def __init__(self) -> None:
        self.last: list[bool] = [True]

    def record(self, stream: int) -> object:
        """A new event, kept in `last` until somebody takes it."""
        self.last = [False]
        return self.last

    def done(self, token: object) -> bool:
        """Whether the recording has seen the free complete."""
        return bool(token[0])  # type: ignore[index]

    def synchronize(self, token: object) -> None:
        """A wait completes the event."""
        token[0] = True  # type: ignore[index]

    def awaited(self, accesses: object, tokens: Sequence[object]) -> object:
        """A recording knows of no accesses."""
        return None


class RecordedDriver(DeviceMemory):
    """A driver that answers with recorded addresses, in order, as long as the sizes agree."""

    __slots__ = ("answered", "answers")

    def __init__(self, total_bytes: int, answers: deque[tuple[int, int]]) -> None:
        super().__init__(total_bytes)
        self.answers = answers
        self.answered: dict[int, int] = {}

    def malloc(self, size: int) -> int | None:
        """`cudaMalloc`."""
        if not self.answers or self.answers[0][1] != size or self._in_use(*self.answers[0]):
            found = super().malloc(size)
            while found is not None and self._taken(found, size):
                found = super().malloc(size)
            return found
        address = self.answers.popleft()[0]
        self.malloc_calls += 1
        self.answered[address] = size
        self.reserved_bytes += size
        return address

    def _in_use(self, address: int, size: int) -> bool:
        """Whether memory there was given already, by either kind of answer."""
        ours = self._sizes.items()
        return self._taken(address, size) or any(one < address + size and address < one + held for one, held in ours)

    def _taken(self, address: int, size: int) -> bool:
        """Whether memory there is part of another recorded answer, as in a recording that is out of order."""
        return any(other < address + size and address < other + held for other, held in self.answered.items())

    def free(self, address: int) -> int:
        """`cudaFree`."""
        if address not in self.answered:
            return super().free(address)
        size = self.answered.pop(address)
        self.free_calls += 1
        self.reserved_bytes -= size
        return size


@dataclass(frozen=True)
class Disagreement:
    """The first event at which replay and recording differ; addresses are offsets from the recorded segment."""

    event: int
    action: str
    size: int
    recorded: str
    replayed: str


@dataclass
class ReplayResult:
    """How a replay agrees with its recording. Counts of events; sizes in bytes."""

    path: str
    device: int
    driver: str
    alloc_conf: str
    events: int = 0
    allocations: int = 0
    placements_agree: int = 0
    driver_calls: int = 0
    driver_calls_agree: int = 0
    final_segments: int = 0
    final_segments_agree: int = 0
    final_blocks: int = 0
    final_blocks_agree: int = 0
    start_segments: int = 0
    start_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    out_of_memory: int = 0
    first_disagreement: Disagreement | None = None
    with_recorded_addresses: ReplayResult | None = None

    @property
    def agrees(self) -> bool:
        """Whether every placement, driver call and final block is the recorded one."""
        return self.first_disagreement is None

    @property
    def explained(self) -> bool:
        """Whether the replay agrees, or differs only because the driver put segments elsewhere."""
        return self.agrees or (self.with_recorded_addresses is not None and self.with_recorded_addresses.agrees)

    @property
    def verdict(self) -> str:
        """One sentence: whether replay and recording agree, and if not, why."""
        if self.agrees:
            return "agrees on every placement"
        if self.explained:
            return (
                "agrees on every placement once the driver gives the recorded addresses: "
                "the driver's order of segments decides between free blocks of equal size"
            )
        return f"differs from event {self.first_disagreement.event if self.first_disagreement else 0} on"

    def to_json(self) -> Json:
        """Plain data for `--json`."""
        data = {**asdict(self), "agrees": self.agrees, "explained": self.explained, "verdict": self.verdict}
        if self.with_recorded_addresses is not None:
            data["with_recorded_addresses"] = self.with_recorded_addresses.to_json()
        return data


class Replay:
    """One device's events through one allocator."""

    def __init__(self, snapshot: Snapshot, driver: Driver = "modelled", path: str = "") -> None:
        self.snapshot = snapshot
        self.result = ReplayResult(path, snapshot.device, driver, snapshot.settings.text)
        self.events = TokenEvents()
        memory = DeviceMemory(NO_LIMIT)
        if driver == "recorded":
            calls = [event for event in snapshot.events if event.action == "segment_alloc"]
            memory = RecordedDriver(NO_LIMIT, deque((event.address, event.size) for event in calls))
        self.allocator = CachingAllocator(snapshot.device, memory, snapshot.settings, self.events)
        self.pages: dict[int, int] = {}
        self.live: dict[int, Block] = {}
        self.pending: dict[int, list[bool]] = {}
        self.ours: deque[tuple[str, int, int]] = deque()
        self.theirs: deque[Event] = deque()
        self._private: set[PoolId] = set()
        self._from_start: set[int] = set()
        self._private_pages: dict[int, PoolId] = self._pool_pages()

    def run(self) -> ReplayResult:
        """Replay all events and compare the end."""
        start = start_segments(self.snapshot)
        self.result.start_segments = len(start)
        self.result.start_bytes = sum(segment["total_size"] for segment in start)
        self.live = self.allocator.restore(start)
        self._from_start = set(self.live)
        for segment in start:
            self._pair(segment["address"], segment["address"], segment["total_size"])
        self.allocator.on_action = self._hear
        for index, event in enumerate(self.snapshot.events):
            self.result.events += 1
            self._replay(index, event)
        self._compare_calls(len(self.snapshot.events))
        self.allocator.on_action = None
        self._compare_end()
        everything = self.allocator.statistics.all
        self.result.peak_reserved_bytes = everything.reserved_peak
        self.result.peak_allocated_bytes = everything.bytes_peak
        return self.result

    def _pool_pages(self) -> dict[int, PoolId]:
        """The private pool of each recorded page, for recordings whose events do not say it."""
        found: dict[int, PoolId] = {}
        for segment in self.snapshot.segments:
            if segment["segment_pool_id"] != DEFAULT_POOL:
                for page in range(segment["address"], segment["address"] + segment["total_size"], PAGE):
                    found[page // PAGE] = segment["segment_pool_id"]
        return found

    def _hear(self, action: str, address: int, size: int, stream: int, block: Block | None) -> None:
        if action.startswith("segment"):
            self.ours.append((action, address, size))

    def _pair(self, recorded: int, replayed: int, size: int) -> None:
        for offset in range(0, size, PAGE):
            self.pages[(recorded + offset) // PAGE] = (replayed + offset) // PAGE

    def _translate(self, recorded: int) -> int | None:
        """The replayed address that a recorded one stands for; None where no pair of segments covers it."""
        page = self.pages.get(recorded // PAGE)
        return None if page is None else page * PAGE + recorded % PAGE

    def _replay(self, index: int, event: Event) -> None:
        if event.action == "alloc":
            self._alloc(index, event)
        elif event.action == "free_requested":
            self._free(index, event)
        elif event.action == "free_completed":
            self._complete(event)
        elif event.action in ("segment_alloc", "segment_map"):
            self.theirs.append(event)
        elif event.action in ("segment_free", "segment_unmap"):
            self.theirs.append(event)
            if not any(action == event.action for action, _, _ in self.ours):
                self.allocator.empty_cache()
            self._match(index)
        elif event.action == "oom":
            self.result.out_of_memory += 1

    def _alloc(self, index: int, event: Event) -> None:
        self.result.allocations += 1
        pool_id = event.pool_id or self._private_pages.get(event.address // PAGE, DEFAULT_POOL)
        if pool_id != DEFAULT_POOL:
            self.allocator.begin_allocate_to_pool(pool_id)
        try:
            block = self.allocator.malloc(event.size, event.stream)
        except OutOfMemory as error:
            self._differ(index, event, "a block", str(error))
            return
        finally:
            if pool_id != DEFAULT_POOL:
                self.allocator.end_allocate_to_pool(pool_id)
                if pool_id in self._private:
                    self.allocator.release_pool(pool_id)
                self._private.add(pool_id)
        assert block is not None
        self._match(index)
        self.live[event.address] = block
        expected = self._translate(event.address)
        if expected == block.address:
            self.result.placements_agree += 1
        else:
            self._differ(index, event, self._place(expected), self._place(block.address))

    def _free(self, index: int, event: Event) -> None:
        self._from_start.discard(event.address)
        block = self.live.pop(event.address, None)
        if block is None:
            self._differ(index, event, "a free of an allocated block", "no such block is allocated")
            return
        following = self.snapshot.events[index + 1 : index + 2]
        if following and following[0].action == "free_completed" and following[0].address == event.address:
            self.allocator.free(block)
            return
        self.allocator.record_stream(block, -1 - index)
        self.allocator.free(block)
        self.pending[event.address] = self.events.last

    def _complete(self, event: Event) -> None:
        token = self.pending.pop(event.address, None)
        if token is not None:
            token[0] = True
            self.allocator.process_events()
        elif event.address in self._from_start and event.address in self.live:
            self.allocator.free(self.live.pop(event.address))

    def _match(self, index: int) -> None:
        """Pair the driver calls of both sides that are at hand, by kind and size, in order."""
        while self.theirs and self.ours:
            event = self.theirs[0]
            action, address, size = self.ours[0]
            self.result.driver_calls += 1
            same_place = action in ("segment_alloc", "segment_map") or address == self._translate(event.address)
            if action == event.action and size == event.size and same_place:
                self.result.driver_calls_agree += 1
            else:
                self._differ(index, event, f"{event.action} of {event.size} bytes", f"{action} of {size} bytes")
            if event.action in ("segment_alloc", "segment_map"):
                self._pair(event.address, address, min(size, event.size))
            self.theirs.popleft()
            self.ours.popleft()

    def _compare_calls(self, index: int) -> None:
        """Driver calls that only one side made."""
        for event in self.theirs:
            self.result.driver_calls += 1
            self._differ(index, event, f"{event.action} of {event.size} bytes", "no call")
        for action, _, size in self.ours:
            self.result.driver_calls += 1
            self._differ(index, Event(action, 0, size, 0), "no call", f"{action} of {size} bytes")

    def _compare_end(self) -> None:
        ours = {segment["address"]: segment for segment in self.allocator.snapshot()["segments"]}
        index = len(self.snapshot.events)
        for segment in self.snapshot.segments:
            self.result.final_segments += 1
            found = ours.get(self._translate(segment["address"]))
            theirs = list(_shape(segment))
            self.result.final_blocks += len(theirs)
            replayed = list(_shape(found)) if found is not None else []
            agree = len(set(theirs) & set(replayed))
            self.result.final_blocks_agree += agree
            if found is not None and found["total_size"] == segment["total_size"]:
                self.result.final_segments_agree += 1
            if theirs != replayed:
                event = Event("end", segment["address"], segment["total_size"], 0)
                self._differ(index, event, f"{len(theirs)} blocks", f"{agree} of them the same")
        extra = len(ours) - len(self.snapshot.segments)
        if extra > 0:
            event = Event("end", 0, 0, 0)
            self._differ(index, event, f"{len(self.snapshot.segments)} segments", f"{len(ours)} segments")

    def _place(self, address: int | None) -> str:
        """A replayed address as segment and offset."""
        if address is None:
            return "a segment that the replay did not get"
        for segment in self.allocator.segments.values():
            if segment.address <= address < segment.address + segment.size:
                return f"segment {segment.number} of {segment.size} bytes, offset {address - segment.address}"
        return f"{address:#x}, outside all segments"

    def _differ(self, index: int, event: Event, recorded: str, replayed: str) -> None:
        if self.result.first_disagreement is None:
            self.result.first_disagreement = Disagreement(index, event.action, event.size, recorded, replayed)


def _shape(segment: Json) -> Iterator[tuple[int, int, bool]]:
    """The blocks of a segment: offset, size, whether in use."""
    for block in segment["blocks"]:
        yield block["address"] - segment["address"], block["size"], block["state"] != "inactive"


def replay(path: str | Path, driver: Driver = "modelled") -> list[ReplayResult]:
    """Replay every device of a snapshot file; one result a device. Raises FileFormatError for another file.

    Where a replay with modelled addresses differs, a second one with recorded addresses tells whether the driver's
    order of segments is the whole cause.
    """
    results = []
    for snapshot in read(path):
        result = Replay(snapshot, driver, str(path)).run()
        if not result.agrees and driver == "modelled":
            result.with_recorded_addresses = Replay(snapshot, "recorded", str(path)).run()
        results.append(result)
    return results
