"""Memory for what the ranks of a group tell one another at each meeting."""

from __future__ import annotations

import struct

import torch


class Slate(struct.Struct):
    """Memory for numbers of this rank and of all ranks, as tensors and as bytes: neither is made for each meeting."""

    def __init__(self, ranks: int, width: int) -> None:
        super().__init__(f"={width}q")
        self.mine, self.found = bytearray(self.size), bytearray(ranks * self.size)
        with torch._C._DisableTorchDispatch():
            self.mine_tensor = torch.frombuffer(self.mine, dtype=torch.int64)
            self.found_tensor = torch.frombuffer(self.found, dtype=torch.int64)
