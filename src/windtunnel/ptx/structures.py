"""The runtime's structures (`runtime/runtime.h`), for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p

LANES = 32
HOT = SUSPECTS = 64
SEEN_BYTES = 16 << 14
"""Of the table of lines that a block has touched."""
ORDER_BYTES = 12
"""`Order` of runtime.h."""
OWN_BYTES, PAGE = 24, 1024
"""Of a cell of global memory that threads of one block may share, and how many of them lie together."""
SHADOW_BYTES, SHADOW_HEAD = 48, 64
"""Of a cell of shared memory, and before the first one."""
COPIES_BYTES = 72
"""`Copies` of runtime.h."""
CLOCKS_BYTES = 4 * 32 * (32 + 16) + 2 * 4
"""`Clocks` of runtime.h."""
MEETING_BYTES, BARRIER = 4 * (2 + 2 * 32), 8
"""`Meeting` of runtime.h, and the bytes of shared memory of which each is one."""
LANES_BYTES = 2 * 32 * 4 * (1 + 32 * 32)
"""`Lanes` of runtime.h, of all warps of a block."""
TOUCH_BYTES = 12
"""`Touch` of runtime.h, one a warp."""
CHECK, COUNT = 1, 2


class Region(Structure):
    _fields_ = [("low", c_uint64), ("high", c_uint64), ("blank", c_void_p), ("writer", c_void_p), ("reader", c_void_p),
                ("touched_low", c_uint64), ("touched_high", c_uint64), ("touched", c_int64),
                ("pages", c_void_p)]  # fmt: skip


class SiteCounts(Structure):
    _fields_ = [("low", c_uint64), ("high", c_uint64), ("requests", c_uint64), ("lanes", c_uint64), ("sectors",
        c_uint64), ("wavefronts", c_uint64), ("bytes", c_uint64), ("lines", c_uint64), ("region", c_void_p),
                ("own_low", c_uint64), ("own_high", c_uint64), ("others", c_void_p),
                ("other_count", c_int64)]  # fmt: skip


class Fault(Structure):
    _fields_ = [(name, c_int32) for name in ("kind", "site", "thread", "block", "other", "count")] + [
        ("address", c_uint64), ("detail", c_int64),
    ]  # fmt: skip


class Hot(Structure):
    _fields_ = [
        ("address", c_uint64),
        ("count", c_uint32),
        ("votes", c_uint32),
        ("block", c_uint32),
        ("several", c_uint32),
    ]


class Suspect(Structure):
    _fields_ = [
        ("fault", Fault), ("place", c_uint64), ("size", c_int32), ("same", c_int32), ("before", c_uint8 * 16),
    ]  # fmt: skip


class Machine(Structure):
    _fields_ = [
        ("regions", POINTER(Region)), ("region_count", c_int64),
        ("faults", POINTER(Fault)), ("fault_count", c_int64), ("fault_room", c_int64),
        ("output", c_void_p), ("output_size", c_int64), ("output_room", c_int64),
        ("shadow", c_void_p),
        ("epoch", c_uint32), ("shared_room", c_int32), ("grain", c_int32), ("access", c_uint32), ("warp_epoch",
        c_uint32 * 64), ("warp_met", c_uint32 * 64), ("clock", c_uint64),
        ("mapped", c_void_p), ("seen", c_void_p), ("distinct_loads", c_uint64),
        ("distinct_stores", c_uint64),
        ("let_go", c_void_p), ("take_back", c_void_p), ("signals", c_void_p), ("thread", c_void_p),
        ("most_loops", c_int64), ("order", c_void_p), ("time", c_uint32), ("grid_barriers", c_int32),
        ("base", c_uint32), ("several", c_uint32), ("atomics", c_int32),
        ("global_grain", c_int32), ("sums", c_int32), ("unfenced", c_int32),
        ("pool", c_void_p), ("pool_used", c_int64), ("generation", c_uint32), ("together", c_uint32),
        ("chosen", c_int32), ("chosen_site", c_int32), ("clocks", c_int64), ("lanes", c_void_p),
        ("copies", c_int64), ("hot", Hot * HOT),
        ("suspected", c_int64), ("suspects", Suspect * SUSPECTS),
    ]  # fmt: skip


class Context(Structure):
    _fields_ = [
        ("parameters", c_void_p), ("shared_base", c_uint64),
        ("block", c_int32 * 3), ("grid", c_int32 * 3), ("size", c_int32 * 3),
        ("dynamic_shared", c_int32), ("shared_bytes", c_int32), ("threads", c_int32), ("trap", c_int32), ("checking",
        c_int32),
        ("block_counts", POINTER(c_uint64)), ("sites", POINTER(SiteCounts)), ("machine", POINTER(Machine)),
        ("warps", c_int32), ("local_bytes", c_int32), ("variables", POINTER(c_uint64)), ("schedule", c_uint64),
        ("frame_bytes", c_int64), ("linear", c_uint64), ("cooperative", c_int32),
        ("last", c_void_p), ("stopped", c_void_p),
    ]  # fmt: skip


class Residents(Structure):
    _fields_ = [
        ("frames", c_uint64), ("shadow", c_uint64), ("shared", c_uint64), ("local", c_uint64),
        ("shared_step", c_int64), ("shadow_step", c_int64), ("local_step", c_int64), ("room", c_int64),
        ("block", c_uint64), ("at_grid", c_uint64),
    ]  # fmt: skip


class Variants(Structure):
    _fields_ = [
        ("whole", c_uint64 * 2), ("partial", c_uint64 * 2), ("looked_at", c_void_p), ("checking", c_int32),
        ("padding", c_int32),
    ]  # fmt: skip


class Frame(Structure):
    _fields_ = [
        ("counter", c_int32 * LANES), ("alive", c_uint32), ("waiting", c_uint32), ("mode", c_int32),
        ("resume", c_int32), ("warp", c_int32), ("budget", c_int32), ("local", c_uint64), ("barrier", c_int32),
        ("barrier_count", c_int32), ("barrier_site", c_int32), ("loops", c_int32), ("padding", c_int32 * 16),
        ("vote", c_uint32), ("votes", c_int32), ("agreement", c_int32), ("spins", c_int32),
        ("thread", (c_int32 * LANES) * 3), ("held", c_uint32), ("passes", c_uint32),
        ("forced", c_uint32), ("at_barrier", c_uint32), ("named", c_uint32 * LANES), ("missed", c_uint32),
        ("arrived", c_int32), ("straight", c_int32), ("together", c_uint32), ("sign", c_int32 * LANES),
        ("arrivals", c_uint32), ("rest", c_uint32 * 7), ("offered", c_uint64 * LANES),
    ]  # fmt: skip


def aligned(size: int, alignment: int = 64) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Zeroed memory and the first aligned address in it."""
    memory = ctypes.create_string_buffer(size + alignment)
    address = ctypes.addressof(memory)
    return memory, -(-address // alignment) * alignment
