"""Which bytes of a storage nobody wrote: of `torch.empty` and its like, after operators that write a part of it.

Only kernels of the program's own ask (`triton.memory`, `extensions.tensors`), so what operators wrote is kept as pieces
until the first one does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.seam.torch.tags import BLANK, Tag, tag_of

Bytes = NDArray[np.uint8]
PIECES = 64
"""How many ranges are kept for a storage; one with more counts as written."""


class Piece(NamedTuple):
    """A part of a storage that an operator wrote, in bytes: where it begins, its sizes and strides."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, blank: Bytes) -> Bytes:
        """Its bytes of a storage's."""
        return np.lib.stride_tricks.as_strided(blank[self.offset :], self.sizes, self.strides)

    def clear(self, blank: Bytes) -> None:
        """Mark it as written."""
        self.of(blank)[...] = 0


def piece_of(tensor: torch.Tensor) -> Piece:
    """A strided tensor's part of its storage."""
    item = tensor.element_size()
    strides = (*(stride * item for stride in tensor.stride()), 1)
    return Piece(int(tensor.storage_offset()) * item, (*tensor.shape, item), strides)


def wrote(tensor: torch.Tensor) -> None:
    """An operator wrote a tensor, which may be a part of its storage."""
    tag = tag_of(tensor)
    if tag.blank is None:
        return
    item = tensor.element_size()
    if tensor.layout is not torch.strided or tensor.numel() * item >= tag.size:
        tag.blank = None
        return
    if tensor.numel():
        _clear(tag, piece_of(tensor))


def wrote_bytes(tag: Tag, offset: int, size: int) -> None:
    """A copy or a fill wrote a range of a storage."""
    if size >= tag.size:
        tag.blank = None
    elif size:
        _clear(tag, Piece(offset, (size,), (1,)))


def _clear(tag: Tag, piece: Piece) -> None:
    if isinstance(tag.blank, np.ndarray):
        piece.clear(tag.blank)
        return
    pieces = [] if tag.blank is BLANK else tag.blank
    assert isinstance(pieces, list)
    pieces.append(piece)
    tag.blank = pieces if len(pieces) <= PIECES else None


def unwritten(tag: Tag, size: int, versions: int) -> Bytes | None:
    """A byte of 1 for each of a storage's `size` bytes that nobody wrote, or None where all are written.

    `versions` is how often PyTorch wrote the storage: if more often than there are pieces, some writes are unknown, and
    all of it counts as written.
    """
    blank = tag.blank
    if blank is BLANK:
        blank = None if tag.accesses is not None and tag.accesses.writes else []
    if isinstance(blank, list):
        made = None
        if size == tag.size and versions <= len(blank):
            made = np.ones(size, dtype=np.uint8)
            for piece in blank:
                piece.clear(made)
        tag.blank = blank = made
    return blank  # type: ignore[return-value]
