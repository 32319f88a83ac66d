"""Composite functions that take other parts on CUDA than on the CPU: each is taken apart here as CUDA does it.

PyTorch makes such a function of other operators in C++, and asks there which device its tensors are on. Kernels of
ours stand in their place, above autograd's and below autocast's, so that Python and C++ callers both come here. The
operators that they call have CUDA's own gradient formulas, and so a backward pass keeps what it keeps on a GPU. The
functions themselves are the `COMPOSITES` of this folder's files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial

import torch

from windtunnel.seam.torch.dispatch import jit_trace
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.dispatch.parts import COMPOSITE, restore_dispatch_keys
from windtunnel.seam.torch.dispatch.parts import composite as apart
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import TRACED, device_of

KEYS = ("AutogradCPU", "AutogradMeta")
"""Where tensors of an emulated device arrive: with data on the CPU, without on meta."""

has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
Composite = Callable[..., object]


def handlers(composites: Mapping[OpOverload, Composite]) -> dict[str, Handler]:
    """The same in inference mode, where a composite arrives whole."""

    def whole(dispatch: Dispatch, call: Call) -> object:
        known = composites.get(call.plan.func)
        if known is None:  # another overload: `softmax.int_out` has a kernel of its own
            whole_or_apart = apart if call.plan.composite else Dispatch.general
            return whole_or_apart(dispatch, call)
        with dispatch.parts, restore_dispatch_keys(dispatch.state):
            return known(dispatch.state, call.plan.func, *call.args, **call.kwargs)

    return {func._schema.name: whole for func in composites}


class Composites:
    """The kernels of one emulation, from `register` to `unregister`."""

    def __init__(
        self, state: State, composites: Mapping[OpOverload, Composite], gradients: Mapping[OpOverload, Composite]
    ) -> None:
        self.composites = {**composites, **gradients}
        self.gradients = gradients
        self.states = [state]
        """Empty when they are out: PyTorch keeps a kernel in Python for good (torch/csrc/utils/python_dispatch.cpp,
        `python_registrations_`), which must keep no emulation."""
        self.library: torch.library.Library | None = None

    def register(self) -> None:
        """Put the kernels in."""
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they replace kernels on purpose
            for func, composite in self.composites.items():
                for key in KEYS:
                    self.library.impl(func, self._kernel(func, composite), key)
            for func in self.gradients:
                name = func.name()
                if has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CUDA"):
                    # Without CUDA's kernel, which a build for the CPU lacks, the parts hide CUDA's gradient.
                    self.library.m.impl(name, "CUDA", partial(func._op_dk, COMPOSITE))  # type: ignore[union-attr]

    def _kernel(self, func: OpOverload, composite: Composite) -> Callable[..., object]:
        states = self.states

        def kernel(*args: object, **kwargs: object) -> object:
            if args[0].__class__ in TRACED and isinstance(args[0], torch.Tensor) and device_of(args[0]) < 0:
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
