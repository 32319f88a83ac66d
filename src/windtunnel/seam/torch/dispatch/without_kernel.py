"""Operators that the CPU has a kernel for and CUDA has none: PyTorch's dispatcher refuses them on a device."""

from __future__ import annotations

import torch

from windtunnel.operators import described
from windtunnel.operators.described import Description
from windtunnel.seam.torch.dispatch.parts import Mode
from windtunnel.seam.torch.plans import native_functions
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import no_kernel
from windtunnel.seam.torch.plans.plan import BUILT_IN
from windtunnel.seam.torch.tags import device_of

OURS = frozenset(
    {
        "aten::_functional_assert_async", "aten::_make_dep_token", "aten::mkldnn_rnn_layer",
        "aten::mkldnn_rnn_layer_backward", "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)  # fmt: skip
"""What C++ calls for a device's tensors, since it takes them for the CPU's, where CUDA would call another kernel."""

PLAIN = ("", "Quantized")
"""Kinds of tensors that `Dispatch.plain` takes; it leaves the others to `Dispatch.general`."""

KERNELS = tuple(
    getattr(torch._C.DispatchKey, name)
    for name in ("CUDA", "CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
)
"""Where an operator of a library may have a kernel that gives its values."""


def missing(func: OpOverload) -> frozenset[str]:
    """The kinds of tensors, as `native_functions.BACKENDS` has them, that an operator takes on the CPU alone."""
    found = native_functions.of(func)
    return frozenset() if found is None or func._schema.name in OURS else found.missing


def shipped(func: OpOverload) -> Description | None:
    """What windtunnel says of an operator whose library has its kernel in a binary that this machine cannot load."""
    return described.of_binary(func.name()) if in_a_binary(func) else None


def in_a_binary(func: OpOverload) -> bool:
    """Whether a library has defined an operator and no kernel that gives its values has been loaded."""
    return func.namespace not in BUILT_IN and not any(map(func.has_kernel_for_dispatch_key, KERNELS))


def explain(dispatch: Mode, call: Call) -> object:
    """Run such an operator, with a way out where PyTorch refuses it."""
    try:
        return dispatch.general(call)
    except NotImplementedError as error:
        error.add_note(
            f"{call.plan.name} has its kernel in a binary that this machine has not loaded. A few lines "
            "(windtunnel.kernel) say what it computes: windtunnel run --kernels FILE"
        )
        raise


def check(kinds: frozenset[str], call: Call) -> None:
    """Refuse a call with a device's tensors of these kinds, or one that makes such a tensor."""
    device = call.kwargs.get("device")
    tensors = call.tensors()
    if any(device_of(tensor) >= 0 for tensor in tensors):
        kind = native_functions.kind_of(tensors)
    elif call.plan.factory and isinstance(device, torch.device) and device.type == "cuda":
        kind = ""
    else:
        return
    if kind in kinds:
        raise no_kernel(call.plan.func, f"{kind}CUDA")


def refuse(dispatch: Mode, call: Call) -> object:
    """An operator that has no kernel for plain tensors of a device, or none for quantized ones."""
    if call.kwargs or call.plan.factory or call.plan.looks or "" in call.plan.refused:
        return dispatch.general(call)
    if any(tensor.is_quantized for tensor in call.tensors()):
        return dispatch.general(call)
    return dispatch.plain(call.plan, call.plan.func, call.args)
