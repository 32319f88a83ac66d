"""Pages that the host may not touch yet: who does is noted, and goes on."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from windtunnel import ptx
from windtunnel.seam.cuda_runtime.managed import MOST_CLOSED, ClosedPages, ManagedMemory, PendingWork, whole_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="found on Linux alone")
PAGE = mmap.PAGESIZE


def closed(memory: ManagedMemory, low: int, seen: list[tuple[int, bool]], epoch: int, readable: bool = False) -> None:
    memory.watch(
        [ClosedPages(low, low + PAGE, PendingWork(1, epoch), lambda write, _: seen.append((epoch, write)), readable)]
    )


def test_a_read_and_a_write_are_told_apart_and_noted_once() -> None:
    pages = ptx.zeroed(2 * PAGE)
    view = (ctypes.c_char * len(pages)).from_buffer(pages)
    start, seen, known = ctypes.addressof(view), list[tuple[int, bool]](), set[int]()
    memory = ManagedMemory(lambda agent, epoch: epoch in known)
    closed(memory, start, seen, 1)
    closed(memory, start + PAGE, seen, 2, readable=True)
    assert ctypes.string_at(start + PAGE, 1) == b"\0"
    assert seen == []
    ctypes.memset(start + PAGE, 7, 1)
    assert ctypes.string_at(start, 1) == b"\0"
    ctypes.memset(start, 7, 1)
    assert seen == [(2, True), (1, False)]
    closed(memory, start, seen, 3)
    known.add(3)
    assert not memory.release()
    ctypes.memset(start, 8, 1)
    assert len(seen) == 2


def test_of_many_ranges_the_first_are_closed() -> None:
    pages = ptx.zeroed((MOST_CLOSED + 1) * PAGE)
    view = (ctypes.c_char * len(pages)).from_buffer(pages)
    start, seen = ctypes.addressof(view), list[tuple[int, bool]]()
    memory = ManagedMemory(lambda agent, epoch: False)
    for number in range(MOST_CLOSED + 1):
        closed(memory, start + number * PAGE, seen, number)
    ctypes.memset(start + MOST_CLOSED * PAGE, 1, 1)
    assert seen == []
    ctypes.memset(start, 1, 1)
    assert [epoch for epoch, _ in seen] == [0]
    memory.close()


def test_pages_at_the_ends_of_an_allocation_belong_to_it() -> None:
    owned = 10 * PAGE, 12 * PAGE + 8
    assert whole_pages(*owned, owned) == (10 * PAGE, 13 * PAGE)
    assert whole_pages(10 * PAGE + 4, 12 * PAGE, owned) == (11 * PAGE, 12 * PAGE)
    assert whole_pages(10 * PAGE + 4, 10 * PAGE + 8, (0, 0)) == (11 * PAGE, 11 * PAGE)
