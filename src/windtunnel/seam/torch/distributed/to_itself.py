"""Messages of a rank to itself in a batch, which NCCL carries (PyTorch's own test_batch_isend_irecv_nccl sends them).

gloo has no connection of a rank to itself. The send and the receive of one number meet here, whichever is posted first,
and the values are there at once; a half whose other never comes is waited for like any other message.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

import torch

PAUSE_S = 0.002


class Half:
    """One side of a message: its tensors until it meets the other, and the number of their type.

    Of a send also when it begins and what is known of numbers without values.
    """

    def __init__(
        self,
        kind: str,
        tag: int,
        tensors: Sequence[torch.Tensor],
        type_number: int = 0,
        begins_ns: int = 0,
        told: Sequence[int] = (),
    ) -> None:
        self.kind = kind
        self.tag = tag
        self.tensors = tensors
        self.type_number = type_number
        self.begins_ns = begins_ns
        self.told = told
        self.other: Half | None = None
        self.arrived = False

    def wait(self) -> Half:
        """Wait until the other side was posted; what was sent, for a receive, else this side itself."""
        while not self.arrived:
            sleep(PAUSE_S)
        return self if self.other is None else self.other


class ToItself:
    """The halves of one group's messages that have not met."""

    def __init__(self) -> None:
        self._posted: dict[tuple[str, int], Half] = {}

    def post(self, half: Half, has_values: bool) -> None:
        """Meet the other half, if that is there and of one size with this one; else wait for it here."""
        kind = "recv" if half.kind == "send" else "send"
        other = self._posted.get((kind, half.tag))
        if other is None or _bytes(other) != _bytes(half):
            self._posted[half.kind, half.tag] = half
            return
        del self._posted[kind, half.tag]
        sent, received = (half, other) if half.kind == "send" else (other, half)
        with torch._C._DisableTorchDispatch():
            for source, into in zip(sent.tensors, received.tensors, strict=True) if has_values else ():
                into.detach().copy_(source.detach().reshape(-1).view(into.dtype).view(into.shape))
        sent.tensors = received.tensors = ()  # whose memory nobody here keeps
        received.other = sent
        sent.arrived = received.arrived = True


def _bytes(half: Half) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in half.tensors)
