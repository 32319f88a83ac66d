"""What of a kernel's bytes the L2 cache holds, and how fast they come from there.

    time = missed bytes / bandwidth of memory + held bytes / bandwidth of L2

What L2 holds of an operand is a matter of its reuse distance: the bytes that kernels touched since the same memory was
touched before. The machine writes it into a launch's signature (`machine/reuse.py`), so that another GPU, whose L2 is
larger or smaller, can be asked the same. What has no known distance is taken to be in L2 where the whole kernel is well
below its size (`ASSUMED_SHARE`), since the kernel before wrote it.

L2 has its slices at the controllers of memory, so its bandwidth is so many bytes a clock for each bit of memory's bus,
the same on an A100 and an H200, and on an A40 and an L40. `make calibrate` fits both on streaming kernels that were
repeated (github.com/te42kyfo/gpu-benches, `tools/corpus/l2_published.csv`), and prints errors with each card left out.
"""

from __future__ import annotations

from functools import cache
from math import log2
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from windtunnel.cost.files import read
from windtunnel.gpus import Gpu
from windtunnel.trace.operation import REUSED, Signature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes = TypeVar("Bytes", float, "NDArray[np.float64]")
ASSUMED_SHARE = 0.25
"""Working sets up to this part of the L2 cache are taken to be there since the kernel before wrote them; assumed."""
ASSUMED_STEEPNESS = 8.0
BYTES_PER_CLOCK = 31.0
"""What one SM reads from L2 in a cycle: fitted on A100's matrix products (`data/products.toml`)."""
STEPS = 4
"""Distances are kept as quarters of a factor of two, the parts of the bytes as `PARTS`."""
PARTS = 8
ON_PACKAGE_BITS = 1024
"""A memory's bus of so many bits or more is on the package (HBM), a narrower one beside it."""


class Reused(NamedTuple):
    """A part of a kernel's bytes whose memory was touched so many bytes before."""

    part: float
    distance_bytes: float


def step_of(distance_bytes: int) -> int:
    """The step of a distance."""
    return int(STEPS * log2(max(1, distance_bytes)))


def told(parts: dict[int, float]) -> str:
    """As a signature's detail: parts of a kernel's bytes by the quarter power of two of their distance."""
    eighths = {step: round(PARTS * part) for step, part in sorted(parts.items())}
    return " ".join(f"{step}:{part}" for step, part in eighths.items() if part)


def as_reused(signature: Signature, other: Signature) -> Signature:
    """The call with what is known of another one's operands, if nothing is known of its own."""
    if not other.detail or other.detail[-1][0] != REUSED or (signature.detail and signature.detail[-1][0] == REUSED):
        return signature
    return signature._replace(detail=(*signature.detail, other.detail[-1]))


@cache
def reused(text: str) -> tuple[Reused, ...]:
    """What such a detail says."""
    pairs = (one.split(":") for one in text.split())
    return tuple(Reused(int(part) / PARTS, 2.0 ** ((int(step) + 0.5) / STEPS)) for step, part in pairs)


@cache
def constants() -> dict[str, float]:
    """`room` is the distance, as a share of L2, at which it holds half, `steepness` how sharply it ends."""
    return dict(read("cache")["room"][0])


@cache
def bytes_per_s(gpu: Gpu) -> float:
    """The bandwidth of L2."""
    bus_bits = gpu.memory_bandwidth_bytes_per_s * 8 / (2e6 * gpu.memory_clock_mhz)
    memory = "package" if bus_bits >= ON_PACKAGE_BITS else "beside"
    row = next(row for row in read("cache")["bandwidth"] if row["memory"] == memory)
    return float(1e6 * gpu.clock_mhz * row["bytes_per_clock_and_bit"] * bus_bits)


def beyond(distance_bytes: Bytes, room_bytes: float, steepness: float) -> Bytes:
    """The part of bytes at such a distance that a cache with so much room no longer holds."""
    part: Bytes = 1.0 / (1.0 + (room_bytes / distance_bytes) ** steepness)
    return part


def missed(gpu: Gpu, distance_bytes: float) -> float:
    """The part of bytes at such a distance that L2 no longer holds."""
    of = constants()
    return beyond(distance_bytes, of["room"] * gpu.l2_bytes, of["steepness"]) if gpu.l2_bytes else 1.0


def cold_part(gpu: Gpu, size: float, known: tuple[Reused, ...] = ()) -> float:
    """The part of a kernel's bytes that come from memory, or go there."""
    if not size or not gpu.l2_bytes:
        return 1.0
    assumed = beyond(size, ASSUMED_SHARE * gpu.l2_bytes, ASSUMED_STEEPNESS)
    held = sum(one.part * (1.0 - missed(gpu, one.distance_bytes)) for one in known)
    return float(min(assumed, max(0.0, 1.0 - held)))


def moved_ns(gpu: Gpu, size: float, rate: float, again: float = 0.0, known: tuple[Reused, ...] = ()) -> float:
    """Moving so many bytes, and `again` so many: from memory at `rate`, or in L2 where that holds them."""
    cold = cold_part(gpu, size, known)
    return 1e9 * ((size + again) * cold / rate + size * (1.0 - cold) / max(rate, bytes_per_s(gpu)))
