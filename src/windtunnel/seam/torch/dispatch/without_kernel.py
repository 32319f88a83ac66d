"""Operators that the CPU has a kernel for and CUDA has none: PyTorch's dispatcher refuses them on a device."""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.parts import Mode
from windtunnel.seam.torch.plans import native_functions
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.messages import no_kernel
from windtunnel.seam.torch.plans.plan import Plan, tensors_in
from windtunnel.seam.torch.tags import device_of

OURS = frozenset(
    {
        "aten::_functional_assert_async", "aten::_make_dep_token", "aten::mkldnn_rnn_layer",
        "aten::mkldnn_rnn_layer_backward", "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)  # fmt: skip
"""What C++ calls for a device's tensors, since it takes them for the CPU's, where CUDA would call another kernel."""


def missing(func: OpOverload) -> frozenset[str]:
    """The kinds of tensors, as `native_functions.BACKENDS` has them, that an operator takes on the CPU alone."""
    found = native_functions.of(func)
    return frozenset() if found is None or func._schema.name in OURS else found.missing


def refuse(
    kinds: frozenset[str], dispatch: Mode, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords
) -> object:
    """Refuse a call with a device's tensors of these kinds, or one that makes such a tensor."""
    device = kwargs.get("device")
    tensors = list(tensors_in((*args, *kwargs.values())))
    if any(device_of(tensor) >= 0 for tensor in tensors):
        kind = native_functions.kind_of(tensors)
    elif plan.factory and isinstance(device, torch.device) and device.type == "cuda":
        kind = ""
    else:
        return dispatch.general(plan, func, args, kwargs)
    if kind in kinds:
        raise no_kernel(func, f"{kind}CUDA")
    return dispatch.general(plan, func, args, kwargs)
