"""Composite functions that take other parts on CUDA than on the CPU: each is taken apart here as CUDA does it.

PyTorch makes such a function of other operators in C++, and asks there which device its tensors are on. Kernels of
ours stand in their place, above autograd's and below autocast's, so that Python and C++ callers both come here. The
operators that they call have CUDA's own gradient formulas, and so a backward pass keeps what it keeps on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from understudy.seam.torch.dispatch import jit_trace
from understudy.seam.torch.dispatch.mode import Dispatch
from understudy.seam.torch.dispatch.parts import COMPOSITE, as_on_the_way
from understudy.seam.torch.dispatch.parts import composite as apart
from understudy.seam.torch.kernels import attention, composite_checks, ctc, device_branches, mode_dependent, recurrent
from understudy.seam.torch.operators.plan import Plan
from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import TRACED, device_of

aten = torch.ops.aten
KEYS = ("AutogradCPU", "AutogradMeta")
"""Where tensors of an emulated device arrive: with data on the CPU, without on meta."""

Composite = Callable[..., Any]


def _dropout(state: State, func: Any, input: torch.Tensor, p: float, train: bool) -> Any:
    """C++'s dropout: on CUDA one kernel that keeps a mask of one byte an element; its input where it drops nothing.

    Source: `_dropout_impl` of aten/src/ATen/native/Dropout.cpp.
    """
    if 0 <= p <= 1 and (p == 0 or not train or input.numel() == 0):
        return input
    if train and 0 < p < 1 and device_of(input) >= 0 and input.numel() > 0:
        return aten.native_dropout.default(input, p, True)[0]
    return func.decompose(input, p, train)


def whole(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same in inference mode, where a composite arrives whole."""
    known = COMPOSITES.get(func)
    if known is None:  # another overload: `softmax.int_out` has a kernel of its own
        whole_or_apart = apart if plan.composite else Dispatch.general
        return whole_or_apart(dispatch, plan, func, args, kwargs)
    with dispatch.parts, as_on_the_way(dispatch.state):
        return known(dispatch.state, func, *args, **kwargs)


COMPOSITES: dict[Any, Composite] = {
    aten.dropout.default: _dropout,
    aten.scaled_dot_product_attention.default: attention.composite,
    **composite_checks.COMPOSITES,
    **ctc.COMPOSITES,
    **device_branches.COMPOSITES,
    **mode_dependent.COMPOSITES,
    **recurrent.COMPOSITES,
}


HANDLERS = {func._schema.name: whole for func in COMPOSITES}
"""Operators that `Dispatch` hands on whole."""


class Composites:
    """The kernels of one emulation, from `register` to `unregister`."""

    def __init__(self, state: State) -> None:
        self.states = [state]
        """Empty when they are out: PyTorch keeps a kernel in Python for good (torch/csrc/utils/python_dispatch.cpp,
        `python_registrations_`), which must keep no emulation."""
        self.library: Any = None

    def register(self) -> None:
        """Put the kernels in."""
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they replace kernels on purpose
            for func, composite in COMPOSITES.items():
                for key in KEYS:
                    self.library.impl(func, self._kernel(func, composite), key)

    def _kernel(self, func: Any, composite: Composite) -> Callable[..., Any]:
        states = self.states

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if args[0].__class__ in TRACED:
                return func._op_dk(COMPOSITE, *args, **kwargs)
            if not jit_trace.is_on():
                return composite(states[0], func, *args, **kwargs)
            with jit_trace.paused():
                return composite(states[0], func, *args, **kwargs)

        return kernel

    def unregister(self) -> None:
        """Take them out again."""
        if self.library is not None:
            self.library._destroy()
            self.library = None
        self.states.clear()
