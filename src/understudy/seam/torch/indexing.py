"""Indices on the host of a tensor on a device: CUDA's indexing copies them over first, and the host waits.

Source: make_info in aten/src/ATen/native/TensorAdvancedIndexing.cpp and makeLinearIndex in native/cuda/Indexing.cu,
each a blocking `.to(self.device())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from understudy.seam.torch.asserts import guarded
from understudy.seam.torch.dispatch import Dispatch, Handler
from understudy.seam.torch.moves import move
from understudy.seam.torch.operators import Plan
from understudy.seam.torch.tables import MASKABLE
from understudy.seam.torch.tags import CPU, device_of, tag_of

MASKS = (torch.bool, torch.uint8)


def around(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of the operators that index: they bring the indices over, then go on with the handler that there was."""
    return {name: partial(_brought, handlers.get(name, guarded)) for name in MASKABLE}


def _brought(
    inner: Handler, dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    device = device_of(args[0])
    if device >= 0 and any(map(_is_on_host, args[1])):
        with dispatch.parts:
            indices = [move(dispatch.state, i, device) if _is_on_host(i) else i for i in args[1]]
        args = (args[0], indices, *args[2:])
    return inner(dispatch, plan, func, args, kwargs)


def _is_on_host(index: Any) -> bool:
    """Whether an index lies on the host; a mask there is made numbers first, and stays as it is here."""
    return index is not None and index.dtype not in MASKS and tag_of(index).device == CPU
