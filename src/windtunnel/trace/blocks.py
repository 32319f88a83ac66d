"""A trace's rows as NumPy arrays, a block at a time: what reads every operator of a long run reads blocks.

Of a long run most rows are kernels, and what is asked of them are sums, maxima and counts. A block has a few thousand
rows, so that memory stays bounded; what holds from one block to the next is carried by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from windtunnel.trace.columns import Numbers, Truths, columns, distinct, sums
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import KINDS, Record, Trace


@dataclass(slots=True)
class Block:
    """Rows of one trace, a column an array; `device` and `thread` are those of the rows' lanes."""

    trace: Trace
    kind: Numbers
    lane: Numbers
    signature: Numbers
    site: Numbers
    issued: Numbers
    start: Numbers
    end: Numbers
    value: Numbers
    device: Numbers
    thread: Numbers

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def on_device(self) -> Truths:
        """Which rows are a device's work: kernels, copies, collectives."""
        return self.kind <= Kind.COLLECTIVE

    @property
    def duration(self) -> Numbers:
        """How long each took, in nanoseconds."""
        return self.end - self.start

    def record(self, index: int) -> Record:
        """One row, readable."""
        trace = self.trace
        return Record(
            KINDS[self.kind[index]],
            trace.lanes[self.lane[index]],
            trace.signatures[self.signature[index]],
            trace.sites[self.site[index]],
            int(self.issued[index]),
            int(self.start[index]),
            int(self.end[index]),
            int(self.value[index]),
        )

    def records(self, which: Truths) -> Iterator[Record]:
        """Some rows, readable."""
        lanes, signatures, sites = self.trace.lanes, self.trace.signatures, self.trace.sites
        columns = self.kind, self.lane, self.signature, self.site, self.issued, self.start, self.end, self.value
        chosen = (column[which].tolist() for column in columns)
        for kind, lane, signature, site, issued, start, end, value in zip(*chosen, strict=True):
            yield Record(KINDS[kind], lanes[lane], signatures[signature], sites[site], issued, start, end, value)


def blocks(trace: Trace, first: int = 0) -> Iterator[Block]:
    """The rows of a trace from number `first` on."""
    for found in columns(trace.rows, first):
        devices = np.array([lane.device for lane in trace.lanes], dtype=np.int64)
        threads = np.array([lane.thread for lane in trace.lanes], dtype=np.int64)
        kind, lane, signature, site, issued, start, end, value = found
        device, thread = devices[lane], threads[lane]
        yield Block(trace, kind, lane, signature, site, issued, start, end, value, device, thread)


class KernelTimes:
    """Kernels by device and signature, in the order in which these come first: how often, nanoseconds, bytes."""

    def __init__(self) -> None:
        self.sums: dict[tuple[int, int], list[int]] = {}

    def see(self, block: Block, which: Truths | None = None) -> None:
        """Add the kernels of a block, or some of them."""
        which = block.kind == Kind.KERNEL if which is None else which
        many = len(block.trace.signatures)
        keys, place = distinct(block.device[which] * many + block.signature[which])
        found = [sums(place, of, len(keys)) for of in (np.ones_like(place), block.duration[which], block.value[which])]
        for key, *more in zip(keys, *found, strict=True):
            known = self.sums.setdefault((key // many, key % many), [0, 0, 0])
            known[:] = map(sum, zip(known, more, strict=True))
