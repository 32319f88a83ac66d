"""Packed sequences: their values lie on the device, their batch sizes and lengths on the host."""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.tags import device_of
from windtunnel.seam.torch.type_names import scalar_type

LENGTHS = "'lengths' argument should be a 1D CPU int64 tensor, but got {}D {} {} tensor"
"""aten/src/ATen/native/PackedSequence.cpp."""


def pack(dispatch: Dispatch, call: Call) -> object:
    """aten::_pack_padded_sequence, for torch.nn.utils.rnn.pack_padded_sequence: (values, batch sizes)."""
    if dispatch.state.no_data and device_of(call.args[0]) >= 0:
        return _pack_without_data(dispatch, call)
    _check(call.args[1])
    return pad(dispatch, call)


def _pack_without_data(dispatch: Dispatch, call: Call) -> object:
    """The same in a rehearsal without data: the lengths have values, which decide the shape."""
    padded, lengths = call.args[:2]
    call.device = device_of(padded)
    _check(lengths)
    rows, batch_sizes = call.plan.func(torch.empty((*padded.shape[:2], 1)), lengths, *call.args[2:])
    values = torch.empty((len(rows), *padded.shape[2:]), dtype=padded.dtype, device="meta")
    dispatch.tag(values, call.device)
    dispatch.submit(call, values)
    return values, batch_sizes


def pad(dispatch: Dispatch, call: Call) -> object:
    """aten::_pad_packed_sequence, for torch.nn.utils.rnn.pad_packed_sequence: (padded values, lengths on the host).

    Of what either operator returns the first lives on the device.
    """
    device = device_of(call.args[0])
    if device < 0:
        return dispatch.general(call)
    call.device = device
    out = dispatch.compute(call)
    dispatch.tag(out[0], device)
    dispatch.submit(call, out[0])
    return out


def _check(lengths: torch.Tensor) -> None:
    found = device_of(lengths)
    if found >= 0:
        raise RuntimeError(LENGTHS.format(lengths.dim(), device_name(found), scalar_type(lengths.dtype)))


HANDLERS = {"aten::_pack_padded_sequence": pack, "aten::_pad_packed_sequence": pad}
"""Operators with handlers of their own."""
