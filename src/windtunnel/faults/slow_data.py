"""The fault `slow-data`: batches that come late."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class SlowData(Fault):
    """A DataLoader delivers its next batch `ms` milliseconds later, on the modelled clock.

    With `times=0` every batch is late.
    """

    name: ClassVar = "slow-data"
    kind = "batch"
    after: ClassVar = True
    options: ClassVar = {"ms": 100.0}

    def strike(self, hands: Hands) -> None:
        """Wait."""
        hands.delay(round(self.value["ms"] * 1_000_000))
