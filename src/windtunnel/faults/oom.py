"""The fault `oom`: device memory that is not there."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.errors import UsageError
from windtunnel.faults import Fault, Hands


class OutOfMemory(Fault):
    """A request for device memory fails with PyTorch's `OutOfMemoryError`.

    The first one at or after the moment; with `until=freed` all until the program has given memory back.
    """

    name: ClassVar = "oom"
    options: ClassVar = {"until": "once"}

    def strike(self, hands: Hands) -> None:
        """Refuse memory."""
        if self.value["until"] not in ("once", "freed"):
            raise UsageError(f"until of the fault 'oom' cannot be {self.value['until']!r}: it must be once or freed")
        hands.refuse_memory(self.value["until"] == "freed")
