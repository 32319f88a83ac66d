"""Memory in which launches note who touched what, used again by later ones.

Each launch takes numbers of its own for its blocks, above all that earlier ones left behind: memory that is used again
need not be cleared, which takes as long as a small kernel."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field

from windtunnel.ptx.flow import Graph
from windtunnel.ptx.memory import zeroed
from windtunnel.ptx.structures import (
    BARRIER,
    CLOCKS_BYTES,
    COPIES_BYTES,
    LANES,
    MEETING_BYTES,
    SHADOW_BYTES,
    SHADOW_HEAD,
    TOUCH_BYTES,
)

MOST_NUMBERS = (1 << 30) - 2
"""The runtime has two bits of its own beside a block's number."""
KEPT_BYTES = 256 << 20
"""Of memory that no launch uses."""


@dataclass(frozen=True)
class BlockShadow:
    """What notes who touched a block's shared memory: its bytes, and where the threads' asynchronous copies and what
    the warps know of each other lie in it; 0: nowhere."""

    size: int
    copies: int
    clocks: int


def of_a_block(shared: int, threads: int, graph: Graph) -> BlockShadow:
    """For so many bytes of shared memory."""
    copies = SHADOW_HEAD + SHADOW_BYTES * shared
    clocks = copies + COPIES_BYTES * threads * graph.copies
    touches = 2 * TOUCH_BYTES * shared * -(-threads // LANES)
    meetings = MEETING_BYTES * (shared // BARRIER + 1)
    size = clocks + (CLOCKS_BYTES + touches + meetings) * graph.apart_at_barriers
    return BlockShadow(size, copies * graph.copies, clocks * graph.apart_at_barriers)


@dataclass
class Shadow:
    """A piece of memory, for one purpose: what another one leaves behind may look like a number of now."""

    purpose: str
    size: int
    address: int
    kept: object


@dataclass
class Shadows:
    """What is idle, by purpose and size, and the numbers that are taken."""

    idle: dict[tuple[str, int], list[Shadow]] = field(default_factory=dict)
    idle_bytes: int = 0
    taken: int = 0
    round: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def numbers(self, count: int) -> tuple[int, int]:
        """The number below the first of `count`, and their round."""
        with self.lock:
            if self.taken + count > MOST_NUMBERS:
                self.idle.clear()
                self.idle_bytes, self.taken, self.round = 0, 0, self.round + 1
            self.taken += count
            return self.taken - count, self.round

    def take(self, purpose: str, size: int, dense: bool = False) -> Shadow:
        """At least `size` bytes without a number of now; large pages if most will be touched."""
        rounded = 1 << (size - 1).bit_length()
        with self.lock:
            waiting = self.idle.get((purpose, rounded))
            if waiting:
                self.idle_bytes -= rounded
                return waiting.pop()
        memory = zeroed(rounded, dense)
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        return Shadow(purpose, rounded, ctypes.addressof(view), (memory, view))

    def give(self, shadow: Shadow, round: int) -> None:
        """Keeps what has numbers of that round for a later launch, if there is room."""
        with self.lock:
            if round == self.round and self.idle_bytes + shadow.size <= KEPT_BYTES:
                self.idle.setdefault((shadow.purpose, shadow.size), []).append(shadow)
                self.idle_bytes += shadow.size


SHADOWS = Shadows()
