"""Operators whose gradient on CUDA is registered under CUDA's own autograd key: AutogradCUDA in derivatives.yaml.

PyTorch's build for the CPU has these kernels too. A call on a device's tensors is handed to CUDA's, any other to the
one of all devices without a formula of their own.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

aten = torch.ops.aten
Keys, Key = torch._C.DispatchKeySet, torch._C.DispatchKey
MODES = Keys(Key.PythonTLSSnapshot) | Keys(Key.Python)
"""Where a kernel of autograd goes on; that of a view by way of VIEWS."""
VIEWS = Keys(Key.ADInplaceOrView)
ON_CUDA, ELSEWHERE = Keys(Key.AutogradCUDA), Keys(Key.AutogradXPU)


def by_device(state: State, func: OpOverload, input: torch.Tensor) -> object:
    """An operator of one tensor with the gradient of the tensor's device."""
    keys = MODES | (ON_CUDA if device_of(input) >= 0 else ELSEWHERE)
    return func.redispatch(keys if func._schema.arguments[0].alias_info is None else keys | VIEWS, input)


GRADIENTS = dict.fromkeys(
    (
        aten._test_autograd_multiple_dispatch.fullcoverage,
        aten._test_autograd_multiple_dispatch_view.default,
        aten._test_autograd_multiple_dispatch_view_copy.default,
    ),
    by_device,
)
"""All that there are in PyTorch 2.6 to 2.14."""
