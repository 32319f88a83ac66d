"""Operators that are other operators: composite ones, those that take operators, and those without any tensor."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.plan import Plan, tensors_in
from windtunnel.seam.torch.state.state import State

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

    def general(self, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
        """Run an operator whole."""


class HigherOrderPlan(Plan):
    """How an operator that takes operators is handled: its CUDA kernel is Python, and what that calls comes here."""

    __slots__ = ()

    def __init__(self, func: OpOverload) -> None:
        self.func = func
        self.handler = higher_order
        self.direct = False


def higher_order(dispatch: Mode, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Run a higher-order operator's kernel, `run_dtensor_rng_op` for one, under the mode."""
    kernel = next((func.py_kernels[key] for key in KERNELS if key in func.py_kernels), None)
    if kernel is None:
        raise NotImplementedError(f"could not find kernel for HigherOrderOperator {func.name()} on CUDA")
    with dispatch.parts:
        return kernel(*args, **kwargs)


def tensorless(dispatch: Mode, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Run an operator that neither takes nor makes tensors (`record_function`'s): nothing happens on a device."""
    return plan.run(*args, **kwargs)


def composite(dispatch: Mode, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Take a composite operator apart as autograd does; under `torch.inference_mode` it comes here whole.

    Strided nested tensors have kernels of their own for some of them.
    """
    if any(tensor.is_nested for tensor in tensors_in(args)):
        return dispatch.general(plan, func, args, kwargs)
    with dispatch.parts, restore_dispatch_keys(dispatch.state):
        return func._op_dk(COMPOSITE, *args, **kwargs)


def restore_dispatch_keys(state: State) -> AbstractContextManager[object]:
    """Let operators see to conjugate and negative views, to zero tensors and to autocast again, as before they came."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in LAZY:
        exclude = exclude.remove(key)
    if state.autocast.is_on():
        exclude = exclude.remove(AUTOCAST)
        include = include.add(AUTOCAST) if state.no_data else include
    return torch._C._ForceDispatchKeyGuard(include, exclude)
