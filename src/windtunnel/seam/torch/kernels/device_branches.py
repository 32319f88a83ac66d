"""Functions of C++ that ask which device they are on, and on CUDA wait less or convert less than on the CPU.

- `softmax` and `log_softmax` of float16 with `dtype=float32`, which is what autocast asks for: CUDA converts inside the
  kernel, forward and backward; the CPU makes a float32 copy first (aten/src/ATen/native/SoftMax.cpp).
- `one_hot`: CUDA leaves the check of the classes to the scatter's device assert (Onehot.cpp).
- The gradient of `max`, `min` and `median` over all elements: CUDA looks for NaN without asking the host
  (`evenly_distribute_backward` in torch/csrc/autograd/FunctionsManual.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.dispatch.parts import COMPOSITE
from windtunnel.seam.torch.kernels.mode_dependent import placed
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, OpOverload
from windtunnel.seam.torch.plans.dtypes import REAL, refusal
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

aten = torch.ops.aten
Tensor = torch.Tensor

FORWARD = ("aten::_softmax", "aten::_log_softmax")
BACKWARD = ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")


def _normalizing(kernel: OpOverload) -> Callable[..., object]:
    def normalized(state: State, func: OpOverload, input: Tensor, dim: int, dtype: torch.dtype | None = None) -> object:
        """`softmax` or `log_softmax`."""
        if dtype is torch.float32 and input.dtype is torch.float16 and device_of(input) >= 0:
            return kernel(input, dim, True)
        return func._op_dk(COMPOSITE, input, dim, dtype)

    return normalized


def one_hot(state: State, func: OpOverload, input: Tensor, num_classes: int = -1) -> object:
    """torch.nn.functional.one_hot, which waits for the device only where it must find the number of classes."""
    device = device_of(input)
    if device < 0 or input.dtype is not torch.int64 or not input.numel():
        return placed(state, func, input, num_classes)
    if num_classes == -1:
        num_classes = int(aten.max.default(input).item()) + 1
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    size = [*input.shape, num_classes]
    zeros = aten.zeros.default(size, dtype=torch.int64, device=state.cuda_devices[device], pin_memory=False)
    return zeros.scatter_(-1, input.unsqueeze(-1), 1)


class Converting(SubstituteKernel):
    """A kernel that converts between float16 and float32 itself, made of the CPU's, which does not."""

    def __call__(self, first: Tensor, *rest: object) -> object:
        if first.is_meta:
            return self.func(first, *rest)
        if first.dtype is torch.float16:  # forward: half_to_float
            return self.func(first.float(), *rest[:-1], False)
        return self.func(first, *rest[:-1], first.dtype).to(rest[-1])


def _kernel(func: OpOverload, args: Arguments, _: dict[str, object]) -> object:
    converts = args[2] is True if len(args) == 3 else args[0].dtype != args[3]
    return Converting(func) if converts else func


def dropout(state: State, func: OpOverload, input: Tensor, p: float, train: bool) -> object:
    """C++'s dropout: on CUDA one kernel that keeps a mask of one byte an element."""
    if train and 0 < p < 1 and device_of(input) >= 0 and input.numel() > 0:
        if input.dtype not in REAL:
            raise refusal("fused_dropout", input.dtype)
        return aten.native_dropout.default(input, p, True)[0]
    return func._op_dk(COMPOSITE, input, p, train)  # `decompose` takes a function in Python, which copies


def group_norm(state: State, func: OpOverload, input: Tensor, *args: object, **kwargs: object) -> object:
    """torch.nn.functional.group_norm: CUDA's kernel takes and gives contiguous tensors, channels last or not.

    Source: group_norm in aten/src/ATen/native/group_norm.cpp.
    """
    return func.decompose(input.contiguous() if device_of(input) >= 0 else input, *args, **kwargs)


COMPOSITES = {
    aten.dropout.default: dropout,
    aten.group_norm.default: group_norm,
    aten.softmax.int: _normalizing(aten._softmax.default),
    aten.log_softmax.int: _normalizing(aten._log_softmax.default),
    aten.one_hot.default: one_hot,
}
"""By operator, for `composites.Composites`."""
HANDLERS, VALUES = substituted((*FORWARD, *BACKWARD), _kernel)
"""Operators with handlers of their own, and what computes them in a replay."""
