"""The fault `disk-full`: a checkpoint that does not fit on the disk."""

from __future__ import annotations

from typing import ClassVar

from understudy.faults import Fault, Hands


class DiskFull(Fault):
    """`torch.save` ends in the middle of the file, as on a full disk: the file is there, and cannot be read."""

    name: ClassVar = "disk-full"
    kind: ClassVar = "save"

    def strike(self, hands: Hands) -> None:
        """Fill the disk."""
        hands.fill_disk()
