"""Packed sequences: their values lie on the device, their batch sizes and lengths on the host."""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.tags import device_of
from windtunnel.seam.torch.type_names import scalar_type

LENGTHS = "'lengths' argument should be a 1D CPU int64 tensor, but got {}D {} {} tensor"
"""aten/src/ATen/native/PackedSequence.cpp."""


def pack(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """aten::_pack_padded_sequence, for torch.nn.utils.rnn.pack_padded_sequence: (values, batch sizes)."""
    if dispatch.state.no_data and device_of(args[0]) >= 0:
        return _pack_without_data(dispatch, plan, func, args, kwargs)
    _check(args[1])
    return pad(dispatch, plan, func, args, kwargs)


def _pack_without_data(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """The same in a rehearsal without data: the lengths have values, which decide the shape."""
    padded, lengths = args[:2]
    device = device_of(padded)
    _check(lengths)
    rows, batch_sizes = func(torch.empty((*padded.shape[:2], 1)), lengths, *args[2:])
    values = torch.empty((len(rows), *padded.shape[2:]), dtype=padded.dtype, device="meta")
    dispatch.tag(values, device)
    dispatch.submit(plan, func, args, kwargs, values, device, None)
    return values, batch_sizes


def pad(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """aten::_pad_packed_sequence, for torch.nn.utils.rnn.pad_packed_sequence: (padded values, lengths on the host).

    Of what either operator returns the first lives on the device.
    """
    device = device_of(args[0])
    if device < 0:
        return dispatch.general(plan, func, args, kwargs)
    out = dispatch.call(plan, func, args, kwargs, device)
    dispatch.tag(out[0], device)
    dispatch.submit(plan, func, args, kwargs, out[0], device, None)
    return out


def _check(lengths: torch.Tensor) -> None:
    found = device_of(lengths)
    if found >= 0:
        raise RuntimeError(LENGTHS.format(lengths.dim(), device_name(found), scalar_type(lengths.dtype)))


HANDLERS = {"aten::_pack_padded_sequence": pack, "aten::_pad_packed_sequence": pad}
"""Operators with handlers of their own."""
