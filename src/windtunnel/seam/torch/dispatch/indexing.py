"""Indices on the host into a tensor on a device: PyTorch copies each there first, and the host waits for that.

Sources, in aten/src/ATen/native: expandTensors in IndexingUtils.h (a mask becomes numbers where it lies), make_info in
TensorAdvancedIndexingUtils.h (`.to` of the indices), _index_put_impl_ in TensorAdvancedIndexing.cpp (`.to` of a value
without dimensions, unless a mask on the device makes it a `masked_fill`). A list or a NumPy array as index is made on
the device by the same kind of copy (sequenceToVariable in torch/csrc/autograd/python_variable_indexing.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.asserts import guarded
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.dispatch.moves import move, numbers
from windtunnel.seam.torch.plans.arguments import Arguments
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import device_name, two_devices
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, FLOATING, is_physically_meta, tag_of

Tensor = torch.Tensor
MASKS = (torch.bool, torch.uint8)
VMAP = "torch._functorch.vmap"
"""The module whose frames are on the stack of whatever a vmapped function calls."""


def around(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers of the operators that index: they bring what is needed over, and go on with the handler there was."""
    return {
        name: partial(_indexed, handlers.get(name, guarded))
        for name, when in stating("waits").items()
        if when == "mask"
    }


def _indexed(inner: Handler, dispatch: Dispatch, call: Call) -> object:
    args = call.args
    if dispatch.state.no_data:
        args = _with_number(dispatch.state, args)
    tensor, indices, *rest = args
    device = tag_of(tensor).device
    given = [value for value in (*indices, *rest[:1]) if value is not None]
    if device >= 0 and any(tag_of(value).device == CPU for value in given) and not _vmapped():
        with dispatch.parts:
            args = brought(dispatch.state, args, device)
    elif device == CPU and rest and _alone_there(rest[0], indices) and not _vmapped():
        with dispatch.parts:
            args = (tensor, indices, _number(dispatch.state, rest[0]), *rest[1:])
    return inner(dispatch, call if args is call.args else call.but(args=args))


def _with_number(state: State, args: Arguments) -> Arguments:
    """Arguments with the number to be written on the host, where C++ leaves it if the tensor is on a GPU.

    Without data C++ takes the tensor for one on meta. Only integers are known, and nothing keeps other numbers.
    """
    tensor, indices, *rest = args
    if not rest or rest[0].dim() or tag_of(rest[0]).device != FLOATING:
        return args
    number = state.assumptions.exact.of(rest[0])
    if number is None and not (rest[0].is_floating_point() or rest[0].is_complex()):
        return args
    number = torch.zeros((), dtype=rest[0].dtype, device="cpu") if number is None else number.clone()
    return (tensor, indices, number, *rest[1:])


def brought(state: State, args: Arguments, device: int) -> tuple[object, ...]:
    """The arguments of an operator that indexes with what lay on the host copied to `device`.

    Raises:
        RuntimeError: more than one value on the host shall be written, with PyTorch's text.
    """
    tensor, indices, *rest = args
    if rest:
        rest[0] = _value(state, indices, rest[0], bool(len(rest) > 1 and rest[1]), device)
    there: list[Tensor | None] = []
    for index in indices:
        if index is None or tag_of(index).device != CPU:
            there.append(index)
        elif index.dtype in MASKS:
            there += [move(state, part, device) for part in _selected(state, index).unbind(1)]
        else:
            there.append(numbers(state, index, device))
    return (tensor, there, *rest)


def _selected(state: State, mask: Tensor) -> Tensor:
    """What a mask on the host selects: all, if it is a list that C++ made a tensor of where there is no data."""
    if state.no_data and is_physically_meta(mask):
        state.assumptions.note("mask", name="aten::index", elements=mask.numel())
        mask = torch.ones(mask.shape, dtype=torch.bool, device="cpu")
    return mask.nonzero()


def _vmapped() -> bool:
    """Whether `vmap` is at work: its rules make indices and shape numbers on what physically is the host."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__") == VMAP:
            return True
        frame = frame.f_back
    return False


def _alone_there(value: Tensor, indices: Sequence[Tensor | None]) -> bool:
    """Whether the value lies on a device and no index does."""
    return tag_of(value).device >= 0 and all(tag_of(index).device < 0 for index in indices if index is not None)


def _number(state: State, value: Tensor) -> Tensor:
    """A number on a device that is written to a tensor on the host; tensors there are not."""
    if value.dim():
        raise two_devices(tag_of(value).device, CPU)
    return move(state, value, CPU)


def _value(state: State, indices: Sequence[Tensor | None], value: Tensor, accumulates: bool, device: int) -> Tensor:
    if tag_of(value).device != CPU:
        return value
    if not accumulates and value.numel() == 1 and _one_mask(indices):
        return value
    if value.dim() == 0:
        return move(state, value, device)
    if accumulates or torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"expected device {device_name(device)} but got device cpu for value tensor")
    raise two_devices(device, CPU)


def _one_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether a single mask on the device is all there is, which makes the write a `masked_fill`."""
    given = [index for index in indices if index is not None]
    return len(given) == 1 and given[0].dtype in MASKS and tag_of(given[0]).device >= 0
