"""What CUDA kernels allocate beyond their results: memory that the CPU's kernels, which compute the values, never take.

A table row (`kernel_rows`, `kernel_libraries`) says for an operator how many bytes its CUDA kernel takes while it runs,
as a formula over shapes, types and the GPU. Here the bytes are taken from the device's allocator and given back, as the
kernel does. Two bounds come out: the modelled peak, and the most that the peak could be where a size is an assumption
or an operator has no row at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from understudy.gpus.gpu import Gpu
from understudy.machine.device import Device
from understudy.machine.memory.oom_text import OutOfMemory
from understudy.machine.stream import Stream
from understudy.seam.torch.operators.plan import Plan, tensors_in

if TYPE_CHECKING:
    from understudy.seam.torch.state.state import State

SWITCHES = (torch._C._get_cudnn_enabled, torch._C._get_cudnn_benchmark, torch._C._get_deterministic_algorithms)
"""PyTorch's global choices that decide a formula besides the call's arguments."""


class Need(NamedTuple):
    """What one call of a kernel takes besides its results, in bytes.

    `sizes` are the buffers that are alive together when most is. `first` replaces them in the first call with these
    shapes (an algorithm's search). `unsure` is how much more it may be: above zero where `sizes` are assumed.
    `spare` buffers are done without when memory is short.
    """

    sizes: tuple[int, ...] = ()
    unsure: int = 0
    first: tuple[int, ...] = ()
    spare: bool = False


NOTHING = Need()


class Call:
    """One call of an operator, as a row's formula reads it: arguments by name, tensors in order, results, the GPU."""

    __slots__ = ("arguments", "gpu", "inputs", "name", "outputs")

    def __init__(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, gpu: Gpu) -> None:
        self.name = plan.name
        self.arguments: dict[str, Any] = {**dict(zip(plan.names, args, strict=False)), **kwargs}
        self.inputs = list(tensors_in((*args, *kwargs.values())))
        self.outputs = list(tensors_in((out,)))
        self.gpu = gpu

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name; `default` where it was not given."""
        return self.arguments.get(name, default)


def size_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


class Row(NamedTuple):
    """One line of the tables: operators, a formula, and where it is from.

    `exact` says that the sizes are those of PyTorch's source; otherwise they are a model of a library's choice. `until`
    is the first PyTorch for which the row does not hold.
    """

    operators: tuple[str, ...]
    need: Callable[[Call], Need]
    source: str
    exact: bool = True
    until: tuple[int, int] = (99, 0)


class Kernels:
    """Runs the rows: takes what a kernel takes, and gives it back."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._needs: dict[Any, Need] = {}
        self.shapes: dict[Any, list[Any]] = {}  # results of operators that only CUDA has, by their arguments' shapes

    def run(
        self,
        plan: Plan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        device: Device,
        stream: Stream,
        key: tuple[Any, ...],
    ) -> None:
        """Account for one call of an operator that has a row, or of one that is not known."""
        row = plan.row
        key = (*key, *_numbers(args), *_numbers(tuple(kwargs.values())), *(switch() for switch in SWITCHES))
        need = self._needs.get(key)
        if need is None:
            call = Call(plan, args, kwargs, out, device.gpu)
            need = self._needs[key] = unknown(call) if row is None else row.need(call)
            if need.first:
                self.take(device, stream, need.first, need.spare)
                return
        if need.sizes:
            self.take(device, stream, need.sizes, need.spare)
        if need.unsure:
            device.at_most(device.allocator.memory_allocated() + sum(need.sizes) + need.unsure, plan.name)

    def take(self, device: Device, stream: Stream, sizes: tuple[int, ...], spare: bool = False) -> None:
        """Take these bytes and give them back; the program's out of memory where there are none, unless `spare`."""
        state = self._state
        blocks = []
        try:
            for size in sizes:
                blocks.append(device.allocator.malloc(size, stream.index))
        except OutOfMemory as error:
            if not spare:
                raise state.memory.out_of_memory(error) from None
        finally:
            free = device.allocator.free
            for block in reversed(blocks):
                if block is not None:
                    free(block)


def _numbers(values: tuple[Any, ...]) -> list[Any]:
    """What of a call's arguments decides a formula besides shapes and types: numbers, and how tensors lie in memory."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            try:
                found.append(value.stride())
            except RuntimeError:  # sparse and nested tensors have none
                continue
        elif isinstance(value, (list, tuple)):
            if value and isinstance(value[0], (int, bool)):
                found.append(tuple(value))
        elif value.__class__ in (int, bool, float, str):
            found.append(value)
    return found


def unknown(call: Call) -> Need:
    """An operator without a row: nothing is taken, and as much as all it reads and writes may be."""
    return Need(unsure=sum(size_of(t) for t in (*call.inputs, *call.outputs)
                           if t.layout is torch.strided))  # fmt: skip
