"""PyTorch's caching allocator of page-locked host memory, over integers.

The rules are those of ATen/core/CachingHostAllocator.h (PyTorch 2.13): sizes are rounded up to a power of two, freed
blocks are kept in a list a size and used again last in first out, a block that a stream still reads or writes comes
back when the event recorded at its free is complete, and nothing is split. `torch.ones(10 * 1024)` takes 65536 bytes
of pinned memory, `torch.ones(20 * 1024)` takes 131072.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from windtunnel.errors import InternalError
from windtunnel.machine.memory.pending import EventSource, Frees, InstantEvents
from windtunnel.machine.memory.settings import Settings
from windtunnel.machine.memory.statistics import RareStat

BUCKETS = 64
_FIRST_ADDRESS = 0x7E00_0000_0000
_PAGE_BYTES = 4096


class HostBlock:
    """One piece of page-locked host memory. `uses` are the (device, stream) pairs recorded on it since its malloc,
    each with an event once its storage has died.

    `memory` is the owner's: where the bytes really are, kept while the block is, so that reuse gives the same address.
    """

    __slots__ = ("accesses", "address", "allocated", "events", "memory", "requested", "size", "uses")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.allocated = False
        self.events = 0
        self.uses: dict[tuple[int, int], object] | None = None
        self.accesses: object = None
        self.memory: object = None


class Duration:
    """Times that the driver took, ns; reported in microseconds as PyTorch does."""

    __slots__ = ("count", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self.total_ns = self.max_ns = self.min_ns = self.count = 0

    def add(self, duration_ns: int) -> None:
        """One call of the driver."""
        self.min_ns = duration_ns if self.count == 0 else min(self.min_ns, duration_ns)
        self.max_ns = max(self.max_ns, duration_ns)
        self.total_ns += duration_ns
        self.count += 1

    def reset_accumulated(self) -> None:
        """Forget the calls so far, but not their extremes."""
        self.total_ns = self.count = 0

    def reset_peak(self) -> None:
        """Forget the extremes."""
        self.max_ns = self.min_ns = 0

    def to_dict(self) -> dict[str, int]:
        """total, max, min and avg in microseconds, and the number of calls."""
        total = self.total_ns // 1000
        average = total // self.count if self.count else 0
        return {
            "total": total,
            "max": self.max_ns // 1000,
            "min": self.min_ns // 1000,
            "count": self.count,
            "avg": average,
        }


class HostAllocator:
    """Page-locked host memory of one process.

    `events` records on (device, stream) pairs: its `record` gets such a pair. `alloc_ns` and `free_ns` are what one
    call of `cudaHostAlloc` (or a function of its size in bytes) and `cudaFreeHost` costs. `may_query` says whether an
    event may be queried now, and raises where that is an error. `frees` collects blocks whose storages died, on
    whatever thread; they are freed at the next call.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        events: EventSource[tuple[int, int]] | None = None,
        alloc_ns: int | Callable[[int], int] = 0,
        free_ns: int = 0,
    ) -> None:
        self.settings = settings or Settings()
        self._events: EventSource[tuple[int, int]] = events or InstantEvents()
        self.frees: Frees[HostBlock, tuple[int, int]] = Frees(self._events)
        self.alloc_ns = alloc_ns
        self.may_query: Callable[[], bool] = lambda: True
        self._free_ns = free_ns
        self._free_lists: list[list[HostBlock]] = [[] for _ in range(BUCKETS)]
        self._pending: deque[tuple[object, HostBlock]] = deque()
        self._next_address = _FIRST_ADDRESS
        self._allocations = RareStat()
        self._allocated_bytes = RareStat()
        self._active = [RareStat() for _ in range(BUCKETS)]
        self._active_bytes = [RareStat() for _ in range(BUCKETS)]
        self._bucket_allocations = [RareStat() for _ in range(BUCKETS)]
        self._alloc_time = Duration()
        self._free_time = Duration()

    def round_size(self, requested: int) -> int:
        """The size of the block for a request: the next power of two, unless the settings limit rounding."""
        settings = self.settings
        if requested <= settings.pinned_max_round_threshold and requested <= settings.pinned_max_cached_size:
            return 1 << (requested - 1).bit_length()
        return requested

    def malloc(self, requested: int) -> HostBlock | None:
        """A block of at least `requested` bytes; None for zero bytes."""
        self.drain()
        if requested <= 0:
            return None
        self.process_events()
        size = self.round_size(requested)
        bucket = (size - 1).bit_length()
        free = self._free_lists[bucket]
        if free:
            block = free.pop()
        else:
            block = self._new_block(size, bucket)
        block.allocated = True
        block.requested = requested
        self._active[bucket].increase()
        self._active_bytes[bucket].increase(size)
        return block

    def _new_block(self, size: int, bucket: int) -> HostBlock:
        """`cudaHostAlloc`: addresses are page aligned and never used twice."""
        duration_ns = self.alloc_ns if isinstance(self.alloc_ns, int) else self.alloc_ns(size)
        block = HostBlock(self._next_address, size)
        self._next_address += -(-size // _PAGE_BYTES) * _PAGE_BYTES
        self._allocations.increase()
        self._allocated_bytes.increase(size)
        self._bucket_allocations[bucket].increase()
        self._alloc_time.add(duration_ns)
        return block

    def record_event(self, block: HostBlock, device: int, stream: int) -> None:
        """Work on a stream reads or writes the block: it is reused only when what is queued at its free is done."""
        if block.uses is None:
            block.uses = {}
        block.uses[device, stream] = None

    def free(self, block: HostBlock) -> None:
        """Give a block back; it is reused when the streams recorded on it are done with it."""
        if not block.allocated:
            raise InternalError(f"The pinned block at {block.address:#x} was freed twice.")
        block.allocated = False
        uses, block.uses = block.uses, None
        if not uses:
            self._cache(block)
            return
        self.frees.record(uses)
        tokens = list(uses.values())
        block.events += len(tokens)
        self._pending.extendleft((token, block) for token in tokens)
        if block.accesses is not None:
            block.accesses = self._events.awaited(block.accesses, tokens)

    def drain(self) -> None:
        """Free the blocks whose storages died."""
        while self.frees:
            self.free(self.frees.popleft())

    def process_events(self) -> None:
        """Make the blocks reusable whose events are complete, oldest first, up to the first incomplete one."""
        pending = self._pending
        while pending and self.may_query() and self._events.done(pending[-1][0]):
            block = pending.pop()[1]
            block.events -= 1
            if block.events == 0:
                self._cache(block)

    def _cache(self, block: HostBlock) -> None:
        bucket = (block.size - 1).bit_length()
        self._active[bucket].decrease()
        self._active_bytes[bucket].decrease(block.size)
        if block.size > self.settings.pinned_max_cached_size:
            self._destroy(block, bucket)
        else:
            self._free_lists[bucket].append(block)

    def _destroy(self, block: HostBlock, bucket: int) -> None:
        """`cudaFreeHost`."""
        self._allocations.decrease()
        self._allocated_bytes.decrease(block.size)
        self._bucket_allocations[bucket].decrease()
        self._free_time.add(self._free_ns)

    def empty_cache(self) -> None:
        """Give every reusable block back to the system (`torch.accelerator.empty_host_cache`)."""
        self.drain()
        self.process_events()
        for bucket, free in enumerate(self._free_lists):
            for block in free:
                self._destroy(block, bucket)
            free.clear()

    def memory_stats(self) -> dict[str, object]:
        """The nested dictionary that `torch._C._cuda_hostMemoryStats` returns.

        Bytes are rounded sizes. Peaks of active blocks are the sum of each size's own peak, as in PyTorch.
        """
        self.drain()
        return {
            "allocations": self._allocations.stat(),
            "allocated_bytes": self._allocated_bytes.stat(),
            "active_requests": _sum(self._active),
            "active_bytes": _sum(self._active_bytes),
            "host_alloc_time": self._alloc_time.to_dict(),
            "host_free_time": self._free_time.to_dict(),
            "num_host_alloc": self._allocations.allocated,
            "num_host_free": self._allocations.freed,
            "bucket_allocation": [stat.allocated for stat in self._bucket_allocations],
        }

    def reset_peak(self) -> None:
        """`torch.cuda.reset_peak_host_memory_stats`."""
        for stat in self._stats():
            stat.reset_peak()
        for duration in (self._alloc_time, self._free_time):
            duration.reset_peak()

    def reset_accumulated(self) -> None:
        """`torch.cuda.reset_accumulated_host_memory_stats`."""
        for stat in self._stats():
            stat.reset_accumulated()
        for duration in (self._alloc_time, self._free_time):
            duration.reset_accumulated()

    def _stats(self) -> list[RareStat]:
        buckets = (*self._active, *self._active_bytes, *self._bucket_allocations)
        return [self._allocations, self._allocated_bytes, *buckets]


def _sum(stats: list[RareStat]) -> dict[str, int]:
    names = ("current", "peak", "allocated", "freed")
    return {name: sum(getattr(stat, name) for stat in stats) for name in names}
