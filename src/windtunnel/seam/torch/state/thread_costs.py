"""What the system says of this thread: what it read and wrote, how long it waited for a processor."""

from __future__ import annotations

from collections import Counter
from functools import cache
from time import thread_time_ns
from typing import NamedTuple

from windtunnel.trace.operation import Site

FREED_PROBE, PAGE, DOUBT = 64 << 20, 4096, 2.0


class Reading(NamedTuple):
    """The bytes that this thread has read and written, those of them that went to a disk, and by how many calls."""

    size_bytes: int = 0
    disk_bytes: int = 0
    calls: int = 0

    def since(self, before: Reading) -> Reading:
        """What came after an earlier one."""
        return Reading(*(max(0, now - then) for now, then in zip(self, before, strict=True)))


class BatchCost(NamedTuple):
    """What a batch took its worker on this machine: time, waiting in it, the lines that worked, what they read."""

    work_ns: int = 0
    blocked_ns: int = 0
    lines: Counter[Site] | None = None
    read: Reading = Reading()


@cache
def freeing_ns_per_byte() -> float:
    """What it takes this machine to give memory back, with room for doubt; measured once in a process."""
    memory = bytearray(FREED_PROBE)
    memory[::PAGE] = bytes(len(memory[::PAGE]))  # pages that were never written to cost nothing
    begin_ns = thread_time_ns()
    del memory
    return DOUBT * (thread_time_ns() - begin_ns) / FREED_PROBE


def delay_ns() -> int:
    """How long this thread has been ready to run without a processor; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def files_read() -> Reading:
    """What this thread has read and written so far; nothing where the system does not say."""
    try:
        with open("/proc/thread-self/io") as file:
            read, wrote, reads, writes, fetched, stored = (
                int(line.split()[1]) for line in file.read().splitlines()[:6]
            )
    except (OSError, ValueError, IndexError):
        return Reading()
    return Reading(read + wrote, fetched + stored, reads + writes)
