"""The fault `slow`: a GPU that is slower than the others."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class Slow(Fault):
    """Kernels take `factor` times as long from that moment on, on the modelled clock: a GPU that throttles."""

    name: ClassVar = "slow"
    options: ClassVar = {"factor": 2.0}

    def strike(self, hands: Hands) -> None:
        """Slow the devices of this process down."""
        hands.slow_down(self.value["factor"])
