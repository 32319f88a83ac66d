"""What devices have done until the record that checks see: kernels are so many that no check sees each of them."""

from __future__ import annotations

import numpy as np

from windtunnel.trace.blocks import Block
from windtunnel.trace.columns import Numbers, Truths, highest
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Record


class Work:
    """Counts and ends of work before the row at which a reading stands, `at`; of the rows until its block's end after.

    `first_ns` is when the first work of all began, None without any.
    """

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self._kernels = self._calls = 0
        self._until: dict[int, int] = {}
        self._latest: dict[int, Record] = {}
        self._block: _Rows | None = None
        self._index = 0

    def see(self, block: Block) -> None:
        """Begin a block, of which `at` says how far it is read."""
        self._block = rows = _Rows(block)
        if self.first_ns is None and len(rows.work):
            self.first_ns = int(block.start[rows.work[0]])
        for device in rows.devices:
            rows.follow_device(device, self._until.get(device, 0))
        for thread in rows.threads:
            latest = self._latest.get(thread)
            rows.follow_thread(thread, -1 if latest is None else latest.end_ns)

    def at(self, index: int) -> None:
        """Stand before a row of the block."""
        self._index = index

    def close(self) -> None:
        """Take the rest of the block."""
        if self._block is None:
            return
        self.at(len(self._block.block))
        self._latest |= {thread: work for thread in self._block.threads if (work := self.latest(thread)) is not None}
        self._until |= {device: until for device in self._block.devices if (until := self.until(device)) is not None}
        self._kernels, self._calls = self.kernels, self.calls
        self._block = None

    def told(self) -> Truths:
        """The kernels of the block that checks see as records: of each device the first, and the first after a wait."""
        return np.empty(0, dtype=bool) if self._block is None else self._block.told()

    @property
    def kernels(self) -> int:
        """How many kernels there were."""
        return self._kernels + (0 if self._block is None else int(self._block.kernels[self._index]))

    @property
    def calls(self) -> int:
        """How many kernels and collectives."""
        return self._calls + (0 if self._block is None else int(self._block.calls[self._index]))

    @property
    def last_ns(self) -> int:
        """When the last work ended of all in the blocks before."""
        return max(self._until.values(), default=0)

    def until(self, device: int) -> int | None:
        """When a device's last work ended; None without any."""
        found = None if self._block is None else self._block.until(device, self._index)
        return self._until.get(device) if found is None else found

    def latest(self, thread: int) -> Record | None:
        """Of the kernels and collectives that a thread issued the one that ends last; None without any."""
        index = -1 if self._block is None else self._block.latest(thread, self._index)
        return self._latest.get(thread) if self._block is None or index < 0 else self._block.block.record(index)


class _Rows:
    """A block's work, for questions about any of its rows."""

    def __init__(self, block: Block) -> None:
        self.block = block
        on_device = block.on_device
        self.kernels = _before(block.kind == Kind.KERNEL)
        issued = on_device & (block.kind != Kind.COPY)
        self.calls = _before(issued)
        self.work = np.flatnonzero(on_device)
        self._issued = np.flatnonzero(issued)
        self.devices = np.unique(block.device[self.work]).tolist()
        self.threads = np.unique(block.thread[self._issued]).tolist()
        self._until: dict[int, tuple[Numbers, Numbers]] = {}
        self._latest: dict[int, tuple[Numbers, Numbers]] = {}

    def follow_device(self, device: int, carried: int) -> None:
        """Find when a device was busy until; `carried` is what is known of that before."""
        rows = self.work[self.block.device[self.work] == device]
        self._until[device] = rows, np.maximum(np.maximum.accumulate(self.block.end[rows]), carried)

    def follow_thread(self, thread: int, carried: int) -> None:
        """Find a thread's latest work; what is known before ends at `carried`."""
        rows = self._issued[self.block.thread[self._issued] == thread]
        ends = self.block.end[rows]
        later = np.where(ends > highest(ends, carried), rows, -1)
        self._latest[thread] = rows, np.maximum.accumulate(later)

    def until(self, device: int, index: int) -> int | None:
        """When the device's work before a row ended; None where none is in this block."""
        rows, ends = self._until.get(device, NOTHING)
        place = int(np.searchsorted(rows, index))
        return int(ends[place - 1]) if place else None

    def latest(self, thread: int, index: int) -> int:
        """The row of a thread's latest work before a row; -1 where it is none of this block."""
        rows, latest = self._latest.get(thread, NOTHING)
        place = int(np.searchsorted(rows, index))
        return int(latest[place - 1]) if place else -1

    def told(self) -> Truths:
        """The work of a device that is its first in this block, or since the host waited."""
        waits = np.where(self.block.kind == Kind.SYNCHRONIZE, np.arange(len(self.block)), -1)
        waited = np.maximum.accumulate(waits)
        found = np.zeros(len(self.block), dtype=bool)
        for rows, _ in self._until.values():
            found[rows] = waited[rows] > np.concatenate([[-1], rows[:-1]])
            found[rows[0]] = True
        return found


NOTHING = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def _before(which: Truths) -> Numbers:
    """Of how many rows it holds before each one, and before the end."""
    return np.concatenate([[0], np.cumsum(which)])
