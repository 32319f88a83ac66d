"""How much other memory a device has touched since it touched that of a kernel's operands.

That decides whether L2 still holds them (the reuse distance of a cache that keeps what was used last). Kernels go
through their operands side by side, so that between two touches of one byte lie half of the operands of the kernel
before, those of all kernels between, and half of this one's: as much as the operands of the kernel before and of those
between. Memory that several of them touched counts once. Distances depend on the order of launches, never on times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windtunnel.cost.cache import step_of, told

LEAST_BYTES = 1 << 20
"""Smaller kernels are not looked at: every GPU's L2 holds what they touch."""
FURTHEST_BYTES = 1 << 28
"""No L2 holds what was touched so long ago."""
FEW_BYTES = 1 << 16
"""Smaller operands do not matter."""
MOST_PLACES = FURTHEST_BYTES // FEW_BYTES


class Reuse:
    """The memory that one device touched last, in order: by address, in which kernel and how much of it."""

    def __init__(self) -> None:
        self._kernels = 0
        self._latest: dict[int, tuple[int, int]] = {}

    def touch(self, operands: Iterable[tuple[int, int]]) -> str:
        """The kernel to be launched touches these addresses and sizes.

        Returns what its signature says of it: nothing where no distance is known.
        """
        sizes: dict[int, int] = {}
        for address, size in operands:
            if size >= FEW_BYTES:
                sizes[address] = max(size, sizes.get(address, 0))
        latest, total = self._latest, sum(sizes.values())
        near: dict[int, float] = {}
        for address, distance in self._distances(sizes).items():
            step = step_of(distance)
            near[step] = near.get(step, 0.0) + min(sizes[address], latest[address][1]) / total
        self._kernels += 1
        for address, size in sizes.items():
            latest.pop(address, None)
            latest[address] = self._kernels, size
        if len(latest) > 2 * MOST_PLACES:
            for address in list(latest)[:MOST_PLACES]:
                del latest[address]
        return told(near)

    def _distances(self, wanted: Mapping[int, int]) -> dict[int, int]:
        """How far back each of these addresses is that was touched not too long ago."""
        latest = self._latest
        left = sum(address in latest for address in wanted)
        found: dict[int, int] = {}
        here: list[int] = []  # those of the kernel that is looked at
        total, before = 0, 0
        for address, (kernel, size) in reversed(latest.items()):
            if kernel != before:
                found.update(dict.fromkeys(here, total))
                here = []
                if not left or total >= FURTHEST_BYTES:
                    return found
                before = kernel
            total += size
            if address in wanted:
                here.append(address)
                left -= 1
        found.update(dict.fromkeys(here, total))
        return found
