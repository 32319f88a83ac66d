"""A nested tensor of a list of tensors: the list's are brought to its device.

Source: `_nested_tensor_from_tensor_list` in aten/src/ATen/native/nested/NestedTensorFactories.cpp.
"""

from __future__ import annotations

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.moves import move
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import CPU, device_of

DEVICE = 3
"""The place of the device among the arguments."""


def gathered(dispatch: Dispatch, call: Call) -> object:
    """A nested tensor, on the device that is asked for or else on the list's."""
    given = call.named()
    tensors, device = given["list"], given.pop("device", None)
    if device is not None:
        target = dispatch.state.index(device) if device.type == "cuda" else CPU
        with dispatch.parts:
            given["list"] = [
                tensor if device_of(tensor) == target else move(dispatch.state, tensor, target) for tensor in tensors
            ]
    return dispatch.general(call.but(args=(given.pop("list"),), kwargs=given))


HANDLERS = {"aten::_nested_tensor_from_tensor_list": gathered}
"""Operators with handlers of their own."""
