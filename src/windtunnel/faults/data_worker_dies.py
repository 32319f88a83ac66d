"""The fault `data-worker-dies`: a worker of a DataLoader that is killed."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class DataWorkerDies(Fault):
    """A worker process of a DataLoader is killed before it delivers the next batch, as when memory is short.

    A loader without workers has none to lose.
    """

    name: ClassVar = "data-worker-dies"
    kind = "batch"

    def strike(self, hands: Hands) -> None:
        """Kill it."""
        hands.kill_worker()
