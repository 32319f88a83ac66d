"""Where texts that lie one behind another begin, on the host and on the device (`_SeqLenInfo` of attn_bias.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

Tensor = torch.Tensor
Device = torch.device | str | None


def device_of(device: Device) -> torch.device:
    """The device that masks lie on: the current GPU, where there is one."""
    return torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """These numbers, sent from pinned memory without a wait."""
    if device.type == "cpu":
        return torch.tensor(numbers, dtype=torch.int32)
    return torch.tensor(numbers, dtype=torch.int32, pin_memory=True).to(device, non_blocking=True)


@dataclass
class _SeqLenInfo:
    """Texts of lengths 2, 3, 2 begin at `seqstart_py` [0, 2, 5, 7], and the same on the device."""

    seqstart: Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Iterable[int], *, device: Device = None) -> _SeqLenInfo:
        """Texts of these lengths."""
        lengths = list(seqlens)
        begins = [0, *accumulate(lengths)]
        where = device_of(device)
        return cls(on_device(begins, where), max(lengths, default=-1), min(lengths, default=-1), begins)

    def to(self, device: Device) -> _SeqLenInfo:
        """The same on another device."""
        return replace(self, seqstart=self.seqstart.to(device_of(device), non_blocking=True))

    def intervals(self) -> Iterator[tuple[int, int]]:
        """(begin, end) of each text."""
        yield from pairwise(self.seqstart_py)

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None = None) -> list[Tensor]:
        """A tensor [1, all tokens, ...] by texts, of which each batch of equally long ones is one."""
        if self.seqstart_py[-1] != x.shape[1] or x.shape[0] != 1:
            raise ValueError(
                f"Invalid `torch.Tensor` of shape {x.shape}, expected format (B, M, *) with B=1 and "
                f"M={self.seqstart_py[-1]}\n seqstart: {self.seqstart_py}"
            )
        sizes = batch_sizes or [1] * (len(self.seqstart_py) - 1)
        ends = [self.seqstart_py[i] for i in accumulate(sizes)]
        parts = x.split([b - a for a, b in pairwise([0, *ends])], dim=1)
        return [part.reshape([size, -1, *x.shape[2:]]) for size, part in zip(sizes, parts, strict=True)]


@dataclass
class _PaddedSeqLenInfo(_SeqLenInfo):
    """Texts with room for `padding` tokens each, of which the first `seqlen_py` are in use."""

    seqlen: Tensor
    seqlen_py: list[int]
    padding: int

    @classmethod
    def from_seqlens_padded(
        cls, seqlens: Sequence[int], padding: int, *, device: Device = None
    ) -> _PaddedSeqLenInfo:  # fmt: skip
        """Texts of these lengths."""
        lengths = list(seqlens)
        assert all(length <= padding for length in lengths), f"Seqlens {seqlens} Padding {padding}"
        where = device_of(device)
        begins = list(range(0, len(lengths) * padding + 1, padding))
        return cls(
            on_device(begins, where), max(lengths), min(lengths), begins, on_device(lengths, where), lengths, padding
        )

    def to(self, device: Device) -> _PaddedSeqLenInfo:
        """The same on another device."""
        where = device_of(device)
        begins, lengths = (one.to(where, non_blocking=True) for one in (self.seqstart, self.seqlen))
        return replace(self, seqstart=begins, seqlen=lengths)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """(begin, end of what is in use) of each text."""
        for begin, length in zip(self.seqstart_py, self.seqlen_py, strict=False):
            yield begin, begin + length

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None = None) -> list[Tensor]:
        """Refused, as in the library."""
        raise NotImplementedError("_PaddedSeqLenInfo.split")
