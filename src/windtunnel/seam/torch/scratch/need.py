"""What CUDA kernels allocate beyond their results: memory that the CPU's kernels, which compute the values, never take.

A table row (`SCRATCH` in `scratch/native` and in files of `kernels/`) says for an operator how many bytes its CUDA
kernel takes while it runs, as a formula over shapes, types and the GPU. `state/kernel_buffers` takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from windtunnel.gpus.gpu import Gpu
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call


class Need(NamedTuple):
    """What one call of a kernel takes besides its results, in bytes.

    `sizes` are the buffers that are alive together when most is. `search` is the workspace in which the first call with
    these shapes tries algorithms (`cudnn.benchmark`), before it runs. `unsure` is how much more it may be: above zero
    where `sizes` are assumed. `spare` buffers are done without when memory is short. `kept` says that `sizes` belong to
    the library's handle: the first call on a stream takes them, and later ones find them there.
    """

    sizes: tuple[int, ...] = ()
    unsure: int = 0
    search: int = 0
    spare: bool = False
    kept: bool = False


NOTHING = Need()


class Demand:
    """A call, as a row's formula reads it: arguments by name, tensors in order, results, the GPU."""

    __slots__ = ("arguments", "gpu", "inputs", "name", "outputs")

    def __init__(self, call: Call, gpu: Gpu) -> None:
        self.name = call.plan.name
        self.arguments = call.named()
        self.inputs = call.tensors()
        self.outputs = tensors_in((call.out,))
        self.gpu = gpu

    def get(self, name: str, default: object = None) -> Any:
        """The argument of that name; `default` where it was not given."""
        return self.arguments.get(name, default)


def size_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


class Row(NamedTuple):
    """One line of the tables: operators, a formula, and where it is from.

    `exact` says that the sizes are those of PyTorch's source; otherwise they are a model of a library's choice.
    `copies` says that it takes nothing but copies of operands that do not lie in order.
    """

    operators: tuple[str, ...]
    need: Callable[[Demand], Need]
    source: str
    exact: bool = True
    copies: bool = False


def unknown(call: Demand) -> Need:
    """An operator without a row: nothing is taken, and as much as all it reads and writes may be."""
    return Need(unsure=sum(size_of(t) for t in (*call.inputs, *call.outputs)
                           if t.layout is torch.strided))  # fmt: skip
