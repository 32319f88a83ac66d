"""PyTorch's ids of CUDA streams (`StreamId` in c10/cuda/CUDAStream.cpp), and the emulated driver's handles.

The default stream is 0. One of a pool has its place there above five bits, in which stand the priority, counted from 1,
and a 1. One that another library made has its handle as its id, an address and therefore even.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.machine.device import POOL_STREAMS
from windtunnel.machine.stream import Stream

HANDLE_BASE = 0x5581_0000_0000
"""Where the emulated driver's stream handles begin: any non-zero address will do."""
POOLS = 4
"""The most priorities that PyTorch uses (max_compile_time_stream_priorities in c10/cuda/CUDAStream.h)."""
TYPE_BITS = 4


class PoolStream(NamedTuple):
    """Which stream of which pool a stream is."""

    priority: int
    number: int


def handle(stream: Stream) -> int:
    """What the emulated driver calls a stream; 0 for the default stream."""
    return HANDLE_BASE + (stream.device << 20) + stream.index * 16 if stream.index else 0


def device_of_handle(pointer: int, devices: int, other: int) -> int:
    """The device of a stream by its handle; `other` of one that the emulated driver did not make."""
    device = (pointer - HANDLE_BASE) >> 20
    return device if 0 <= device < devices else other


def pool_id(stream: Stream) -> int:
    """PyTorch's id of a pool's stream; 0 for the default stream, which is of none."""
    return 0 if stream.number < 0 else stream.number << (TYPE_BITS + 1) | (1 - stream.priority) << 1 | 1


def place_of(stream_id: int) -> PoolStream | None:
    """The pool's stream that has this id; None for the default stream and those that other libraries made.

    Raises:
        RuntimeError: no stream has the id.
    """
    if not stream_id & 1:
        return None
    kind, number = stream_id >> 1 & (1 << TYPE_BITS) - 1, stream_id >> (TYPE_BITS + 1)
    if not 1 <= kind <= POOLS or not 0 <= number < POOL_STREAMS:
        raise RuntimeError(f"Unrecognized stream {stream_id} (I didn't recognize the stream type, {kind})")
    return PoolStream(1 - kind, number)
