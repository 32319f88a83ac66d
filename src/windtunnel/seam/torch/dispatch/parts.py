"""Operators that are other operators: composite ones, those that take operators, and those without any tensor."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from windtunnel.seam.torch.plans.arguments import Arguments, OpOverload, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import tag_of

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
LAZY = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative, torch._C.DispatchKey.ZeroTensor)
AUTOCAST = torch._C.DispatchKey.AutocastCPU
KERNELS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd)


class Mode(Protocol):
    """What is asked of the dispatch mode here."""

    @property
    def state(self) -> State:
        """The emulation's."""

    @property
    def parts(self) -> AbstractContextManager[object]:
        """What to enter where an operator is run as others."""

    def general(self, call: Call) -> Result:
        """Run an operator whole."""

    def plain(self, plan: Plan, func: OpOverload, args: Arguments) -> Result:
        """Run one on tensors of one device and numbers."""


class HigherOrderPlan(Plan):
    """How an operator that takes operators is handled: its CUDA kernel is Python, and what that calls comes here."""

    __slots__ = ()

    def __init__(self, func: OpOverload) -> None:
        self.func, self.builtin = func, True
        self.handler = higher_order
        self.direct = False


def run_python(key: torch._C.DispatchKey, dispatch: Mode, call: Call) -> Result:
    """An operator of a library in Python: on a device what its kernel calls comes to the dispatch mode by itself."""
    given = call.given
    on_device = any(tag_of(tensor).device >= 0 for tensor in tensors_in(given))
    if not on_device and not any(isinstance(value, torch.device) and value.type == "cuda" for value in given):
        return dispatch.general(call)
    # What such a kernel returns is a view where PyTorch's own operators make it one, which a mode's turn leaves out.
    with dispatch.parts, torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return call.plan.func._op_dk(key, *call.args, **call.kwargs)


def higher_order(dispatch: Mode, call: Call) -> object:
    """Run a higher-order operator's kernel, `run_dtensor_rng_op` for one, under the mode."""
    func = call.plan.func
    kernel = next((func.py_kernels[key] for key in KERNELS if key in func.py_kernels), None)
    if kernel is None:
        raise NotImplementedError(f"could not find kernel for HigherOrderOperator {func.name()} on CUDA")
    with dispatch.parts:
        return kernel(*call.args, **call.kwargs)


def tensorless(dispatch: Mode, call: Call) -> object:
    """Run an operator that neither takes nor makes tensors (`record_function`'s): nothing happens on a device."""
    return call.plan.run(*call.args, **call.kwargs)


def composite(dispatch: Mode, call: Call) -> object:
    """Take a composite operator apart as autograd does; under `torch.inference_mode` it comes here whole.

    Strided nested tensors have kernels of their own for some of them.
    """
    if any(tensor.is_nested for tensor in tensors_in(call.args)):
        return dispatch.general(call)
    with dispatch.parts, restore_dispatch_keys(dispatch.state):
        return call.plan.func._op_dk(COMPOSITE, *call.args, **call.kwargs)


def restore_dispatch_keys(state: State) -> AbstractContextManager[object]:
    """Let operators see to conjugate and negative views, to zero tensors and to autocast again, as before they came."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in LAZY:
        exclude = exclude.remove(key)
    if state.autocast.is_on():
        exclude = exclude.remove(AUTOCAST)
        include = include.add(AUTOCAST) if state.no_data else include
    return torch._C._ForceDispatchKeyGuard(include, exclude)
