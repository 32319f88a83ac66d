"""Statistics of the caching allocator: plain integers while it runs, PyTorch's nested names when asked."""

from __future__ import annotations

from typing import NamedTuple

_QUANTITIES = ("count", "bytes", "requested", "split", "split_bytes", "segments", "reserved")

Stat = dict[str, int]
StatArray = dict[str, Stat]


class Counters:
    """Running totals of one class of pools, as plain integers; `allocator_stats` turns them into PyTorch's names.

    For each quantity `x`: `x` is the present value, `x_peak` its peak, `x_total` the sum of increases and `x_base` the
    present value when the totals were last reset (so decreases are `base + total - now`).
    """

    __slots__ = (
        *(f"{name}{part}" for name in _QUANTITIES for part in ("", "_total", "_peak", "_base")),
        *("pending", "pending_bytes", "active_peak", "active_bytes_peak", "active_base", "active_bytes_base"),
    )

    count: int
    count_total: int
    count_peak: int
    count_base: int
    bytes: int
    bytes_total: int
    bytes_peak: int
    bytes_base: int
    requested: int
    requested_total: int
    requested_peak: int
    requested_base: int
    split: int
    split_total: int
    split_peak: int
    split_base: int
    split_bytes: int
    split_bytes_total: int
    split_bytes_peak: int
    split_bytes_base: int
    segments: int
    segments_total: int
    segments_peak: int
    segments_base: int
    reserved: int
    reserved_total: int
    reserved_peak: int
    reserved_base: int
    pending: int
    pending_bytes: int
    active_peak: int
    active_bytes_peak: int
    active_base: int
    active_bytes_base: int

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def stat(self, name: str) -> Stat:
        """One quantity as PyTorch reports it: current, peak, allocated (sum of increases), freed (of decreases)."""
        current: int = getattr(self, name)
        total: int = getattr(self, name + "_total")
        base: int = getattr(self, name + "_base")
        peak: int = getattr(self, name + "_peak")
        return {"current": current, "peak": peak, "allocated": total, "freed": base + total - current}

    def active(self) -> Stat:
        """Blocks that are allocated or wait for other streams."""
        current = self.count + self.pending
        freed = self.active_base + self.count_total - current
        peak = max(self.active_peak, self.count_peak)
        return {"current": current, "peak": peak, "allocated": self.count_total, "freed": freed}

    def active_bytes(self) -> Stat:
        """Bytes of the blocks that are allocated or wait for other streams."""
        current = self.bytes + self.pending_bytes
        freed = self.active_bytes_base + self.bytes_total - current
        peak = max(self.active_bytes_peak, self.bytes_peak)
        return {"current": current, "peak": peak, "allocated": self.bytes_total, "freed": freed}

    def reset_peak(self) -> None:
        """Peaks start again at the present values."""
        for name in _QUANTITIES:
            setattr(self, name + "_peak", getattr(self, name))
        self.active_peak = self.count + self.pending
        self.active_bytes_peak = self.bytes + self.pending_bytes

    def reset_accumulated(self) -> None:
        """Sums of increases and decreases start again at zero."""
        for name in _QUANTITIES:
            setattr(self, name + "_total", 0)
            setattr(self, name + "_base", getattr(self, name))
        self.active_base = self.count + self.pending
        self.active_bytes_base = self.bytes + self.pending_bytes


class RareStat:
    """Current, peak, sum of increases and of decreases of something that changes rarely."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int = 1) -> None:
        """More by `amount`."""
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def decrease(self, amount: int = 1) -> None:
        """Less by `amount`."""
        self.current -= amount
        self.freed += amount

    def reset_peak(self) -> None:
        """The peak starts again at the present value."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """The sums start again at zero."""
        self.allocated = self.freed = 0

    def stat(self) -> Stat:
        """As PyTorch reports it."""
        return {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}


class PoolStatistics:
    """Bytes that one private pool holds from the driver, by class of pool."""

    __slots__ = ("reserved",)

    def __init__(self) -> None:
        self.reserved = {kind: RareStat() for kind in ("all", "small_pool", "large_pool")}

    def change(self, kind: str, size: int) -> None:
        """The pool got `size` bytes from the driver, or gave them back (negative)."""
        for stat in (self.reserved["all"], self.reserved[kind]):
            if size > 0:
                stat.increase(size)
            else:
                stat.decrease(-size)

    def to_dict(self) -> StatArray:
        """As PyTorch reports it."""
        return {kind: stat.stat() for kind, stat in self.reserved.items()}


_NAMES = {
    "allocation": "count",
    "segment": "segments",
    "inactive_split": "split",
    "allocated_bytes": "bytes",
    "reserved_bytes": "reserved",
    "inactive_split_bytes": "split_bytes",
    "requested_bytes": "requested",
}


class WholeRun(NamedTuple):
    """What a report says of a device's memory: its peaks, and how often an allocation did not fit at once or at all."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    out_of_memory: int


class Statistics:
    """All statistics of one device's allocator. Names are those of c10's `DeviceStats`."""

    __slots__ = (
        "_earlier",
        "all",
        "large",
        "max_split_size",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
        "num_ooms",
        "num_sync_all_streams",
        "oversize_allocations",
        "oversize_segments",
        "pools",
        "small",
    )

    def __init__(self, max_split_size: int) -> None:
        self.all = Counters()
        self.small = Counters()
        self.large = Counters()
        self.max_split_size = max_split_size if max_split_size < 1 << 63 else max_split_size - (1 << 64)
        self.pools: dict[tuple[int, int], PoolStatistics] = {}
        self.oversize_allocations = RareStat()
        self.oversize_segments = RareStat()
        self._earlier = WholeRun(0, 0, 0, 0)
        self._reset_events()

    def _reset_events(self) -> None:
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_oom_rejections = 0

    # What happens to the blocks of a pool counts in the pool and in all.

    def handed_out(self, pool: Counters, size: int, requested: int) -> None:
        """A block was allocated."""
        for one in (self.all, pool):
            one.count_total += 1
            one.bytes_total += size
            one.requested_total += requested
            one.count = count = one.count + 1
            if count > one.count_peak:
                one.count_peak = count
            one.bytes = total = one.bytes + size
            if total > one.bytes_peak:
                one.bytes_peak = total
            one.requested = now = one.requested + requested
            if now > one.requested_peak:
                one.requested_peak = now
            if one.pending:
                one.active_peak = max(one.active_peak, count + one.pending)
                one.active_bytes_peak = max(one.active_bytes_peak, total + one.pending_bytes)

    def change_split(self, pool: Counters, blocks: int, size: int) -> None:
        """The number and bytes of free pieces of split segments changed, each by one step."""
        for one in (self.all, pool):
            one.split = now = one.split + blocks
            if blocks > 0:
                one.split_total += blocks
                if now > one.split_peak:
                    one.split_peak = now
            one.split_bytes = now = one.split_bytes + size
            if size > 0:
                one.split_bytes_total += size
                if now > one.split_bytes_peak:
                    one.split_bytes_peak = now

    def change_reserved(self, pool: Counters, segments: int, size: int) -> None:
        """Segments were got from the driver (positive) or given back."""
        for one in (self.all, pool):
            one.segments += segments
            one.reserved += size
            if size > 0:
                one.segments_total += segments
                one.segments_peak = max(one.segments_peak, one.segments)
                one.reserved_total += size
                one.reserved_peak = max(one.reserved_peak, one.reserved)

    def whole_run(self) -> WholeRun:
        """Peaks and failures since the beginning, which the program's own resets leave alone."""
        earlier = self._earlier
        return WholeRun(
            max(earlier.peak_allocated_bytes, self.all.bytes_peak),
            max(earlier.peak_reserved_bytes, self.all.reserved_peak),
            earlier.retries + self.num_alloc_retries,
            earlier.out_of_memory + self.num_ooms,
        )

    def _rare(self) -> list[RareStat]:
        pools = [stat for pool in self.pools.values() for stat in pool.reserved.values()]
        return [self.oversize_allocations, self.oversize_segments, *pools]

    def reset_peak(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        run = self.whole_run()
        self._earlier = self._earlier._replace(
            peak_allocated_bytes=run.peak_allocated_bytes, peak_reserved_bytes=run.peak_reserved_bytes
        )
        for counters in (self.all, self.small, self.large):
            counters.reset_peak()
        for stat in self._rare():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """`torch.cuda.reset_accumulated_memory_stats`."""
        run = self.whole_run()
        self._earlier = self._earlier._replace(retries=run.retries, out_of_memory=run.out_of_memory)
        for counters in (self.all, self.small, self.large):
            counters.reset_accumulated()
        for stat in self._rare():
            stat.reset_accumulated()
        self._reset_events()

    def to_dict(self) -> dict[str, object]:
        """The nested dictionary that `torch._C._cuda_memoryStats` returns; counts, and bytes where the name says so."""
        classes = {"all": self.all, "small_pool": self.small, "large_pool": self.large}
        result: dict[str, object] = {
            name: getattr(self, name)
            for name in (
                "num_alloc_retries",
                "num_ooms",
                "max_split_size",
                "num_sync_all_streams",
                "num_device_alloc",
                "num_device_free",
                "num_oom_rejections",
            )
        }
        for name, quantity in _NAMES.items():
            result[name] = {kind: counters.stat(quantity) for kind, counters in classes.items()}
        result["active"] = {kind: counters.active() for kind, counters in classes.items()}
        result["active_bytes"] = {kind: counters.active_bytes() for kind, counters in classes.items()}
        result["oversize_allocations"] = self.oversize_allocations.stat()
        result["oversize_segments"] = self.oversize_segments.stat()
        result["reserved_bytes_by_private_pools"] = {pool: stats.to_dict() for pool, stats in self.pools.items()}
        return result
