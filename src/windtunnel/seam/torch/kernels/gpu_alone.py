"""Operators whose kernels PyTorch has for CUDA and not for the CPU, and that nothing here computes.

A GPU runs them, so they are refused with an error of ours, not with PyTorch's "Could not run".
"""

from __future__ import annotations

from windtunnel.errors import UnsupportedError
from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

INSTEAD = {
    "sparse": "keep the weight dense where there is no GPU",
    "packed": "keep the weight in floating point where there is no GPU",
    "fused": "compute it by PyTorch's ordinary functions where there is no GPU",
}
"""What a program can do instead, by what the cards of such operators say."""


def refuse(dispatch: Dispatch, call: Call) -> object:
    """Refuse one of them on a device; without data a shape is all that it needs to give."""
    if not dispatch.state.no_data and any(device_of(tensor) >= 0 for tensor in call.tensors()):
        raise UnsupportedError(
            f"PyTorch has a kernel for {call.plan.name} only on GPUs, so its values cannot be computed here: "
            f"{INSTEAD[call.plan.card.gpu_alone]}"
        )
    return dispatch.general(call)


HANDLERS = dict.fromkeys(stating("gpu_alone"), refuse)
"""Operators that PyTorch computes on GPUs alone."""
