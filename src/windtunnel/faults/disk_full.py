"""The fault `disk-full`: a checkpoint that does not fit on the disk."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class DiskFull(Fault):
    """A file ends in the middle, as on a full disk: it is there, and cannot be read.

    That of `torch.save`, and so of `torch.distributed.checkpoint`, or of safetensors.
    """

    name: ClassVar = "disk-full"
    kind = "save"

    def in_step(self, asked: int, step: int) -> bool:
        """Also later: files are written every so many steps, and by threads that run behind the training."""
        return asked <= step

    def strike(self, hands: Hands) -> None:
        """Fill the disk."""
        hands.fill_disk()
