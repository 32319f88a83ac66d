"""The one layout in which cuDNN takes all operands of a convolution.

PyTorch copies those that lie otherwise, by kernels of its own, as images behind a `group_norm` whose convolution has
its weight in channels last (aten/src/ATen/native/Convolution.cpp, `determine_backend_memory_format`; cudnn/
ConvShared.cpp). A gradient that is not asked for asks for no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch, hand_on
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.convolutions import OPERANDS, layout_of, lying
from windtunnel.seam.torch.tags import device_of, is_contiguous

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Channels last, by the number of dimensions."""


def in_one_layout(dispatch: Dispatch, call: Call) -> object:
    """A convolution or its gradients: copies of the operands that lie otherwise than cuDNN takes them come before."""
    args, place = call.args, OPERANDS[call.plan.name]
    if call.kwargs or _lie_alike(args[: place + 2]):
        return hand_on(dispatch, call)
    images, weight = args[place : place + 2]
    device = device_of(images)
    if device < 0 or not torch._C._get_cudnn_enabled():
        return hand_on(dispatch, call)
    needed: tuple[bool, ...] = (True, True)
    if place:
        of_images, of_weight, _ = args[-1]
        needed = (of_images or of_weight, of_weight, of_images)  # of its gradient, the images and the weight
    wanted, taken = layout_of((images, weight)), list(args)
    with dispatch.parts:
        for index, of in enumerate(needed):
            if of and device_of(args[index]) == device:
                taken[index] = lying(args[index], wanted)
    return hand_on(dispatch, call.but(args=tuple(taken)))


def _lie_alike(operands: Sequence[torch.Tensor]) -> bool:
    """Whether there is surely nothing to copy: of most networks, without working out which layout is wanted."""
    if all(map(is_contiguous, operands)):
        return True
    last = LAST.get(operands[-1].dim())
    if last is None or operands[-1].dtype is torch.float64:
        return False
    return all(operand.is_contiguous(memory_format=last) for operand in operands)


HANDLERS = dict.fromkeys(OPERANDS, in_one_layout)
"""Operators with handlers of their own."""
