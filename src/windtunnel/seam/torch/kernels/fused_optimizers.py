"""Fused optimizers whose learning rate is a tensor: no wrapper compares the devices of what they are given.

The kernel looks at some of them itself, and at none where the learning rate lies on the host: what else lies there it
reads by an address of the host. Source: aten/src/ATen/native/cuda/FusedAdamKernel.cu, FusedAdagradKernel.cu,
FusedSgdKernel.cu.
"""

from __future__ import annotations

from windtunnel.seam.torch.dispatch.asserts import AssertFailure
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

SCALES = ("grad_scale", "found_inf")
ILLEGAL = ("an illegal memory access was encountered", "cudaErrorIllegalAddress")


def fused(dispatch: Dispatch, call: Call) -> object:
    """A fused optimizer's step; what only a kernel would see is an illegal access."""
    if call.plan.func._overloadname == "tensor_lr":
        given = call.named()
        device = next((device_of(parameter) for parameter in tensors_in((given["self"],))), -1)
        if device >= 0:
            _look(dispatch, call, given, device)
    return dispatch.general(call)


def _look(dispatch: Dispatch, call: Call, given: dict[str, object], device: int) -> None:
    read = ["state_steps"]
    if any(device_of(tensor) < 0 for tensor in tensors_in((given["lr"],))):
        read += SCALES
    else:
        for name in (*SCALES, "lr"):
            if any(device_of(tensor) != device for tensor in tensors_in((given.get(name),))):
                # FusedSgdKernel.cu says the scale's name of the learning rate.
                said = "found_inf" if name == "lr" and call.plan.name == "aten::_fused_sgd_" else name
                raise RuntimeError(f"{said} must be on the same GPU device as the params")
    state = dispatch.state
    for name in read:
        if state.failure is None and any(device_of(tensor) < 0 for tensor in tensors_in((given.get(name),))):
            stream = state.local.streams[device]
            why = f"{call.plan.name.removeprefix('aten::')} reads its {name} on the GPU, and they lie on the host"
            state.failure = AssertFailure(dispatch, stream, stream.epoch + 1, *ILLEGAL, why)


HANDLERS = {f"aten::_fused_{name}_": fused for name in ("adam", "adamw", "adagrad", "sgd")}
"""Operators with handlers of their own."""
