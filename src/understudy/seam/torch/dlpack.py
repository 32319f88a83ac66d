"""DLPack: a tensor that leaves as a capsule and comes back lives where it lived."""

from __future__ import annotations

from typing import Any

import torch

from understudy.seam.exports import lend, place_at
from understudy.seam.patching import Patch
from understudy.seam.torch.state import State
from understudy.seam.torch.tags import HOST_TAG, Tag, storage_of

C: Any = torch._C


def patches(_: State) -> list[Patch]:
    """The functions that make capsules and read them."""
    pointer = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]

    def exporting(stock: Any) -> Any:
        def to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            storage = storage_of(tensor)
            if storage._us is not HOST_TAG:
                lend(pointer(storage), storage._us)
            return stock(tensor, *args, **kwargs)

        return to_dlpack

    stock_from = C._from_dlpack

    def from_dlpack(capsule: Any) -> torch.Tensor:
        made: torch.Tensor = stock_from(capsule)
        storage = storage_of(made)
        lent = place_at(pointer(storage))  # the storage behind a capsule begins at the tensor's first element
        if lent is not None:
            # What another framework lends is its own: this process's PyTorch does not count it.
            storage._us = lent if isinstance(lent, Tag) else Tag(lent.device, lent.size)
        return made

    found = [Patch(C, "_from_dlpack", from_dlpack), Patch(torch.utils.dlpack, "to_dlpack", exporting(C._to_dlpack))]
    found.append(Patch(torch, "to_dlpack", exporting(C._to_dlpack)))
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(C, name):
            found.append(Patch(C, name, exporting(getattr(C, name))))
    if hasattr(torch.utils.dlpack, "_from_dlpack"):  # before torch 2.7
        found.append(Patch(torch.utils.dlpack, "_from_dlpack", from_dlpack))
    return found
