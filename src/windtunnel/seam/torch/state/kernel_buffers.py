"""Takes what a CUDA kernel allocates while it runs from the device's allocator, and gives it back, as the kernel does.

Two bounds come out: the modelled peak, and the most that the peak could be where a size is an assumption or an operator
has no row at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from windtunnel.machine.device import Device
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.plans.arguments import Arguments
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.scratch.need import Demand, Need, Row, unknown

CUDNN, BENCHMARK = torch._C._get_cudnn_enabled, torch._C._get_cudnn_benchmark
DETERMINISTIC = torch._C._get_deterministic_algorithms
"""PyTorch's global choices that decide a formula besides the call's arguments."""
STRIDES: Callable[[torch.Tensor], tuple[int, ...]] = torch._C.TensorBase.stride


def choices() -> tuple[bool, bool, bool]:
    """The program's, at the moment."""
    return CUDNN(), BENCHMARK(), DETERMINISTIC()


class KernelBuffers:
    """Runs the rows: takes what a kernel takes, and gives it back."""

    def __init__(
        self,
        machine: Machine,
        out_of_memory: Callable[[OutOfMemory], Exception],
        keep: Callable[[Device, Stream], None],
    ) -> None:
        self._machine = machine
        self._out_of_memory = out_of_memory
        self._keep = keep
        self._needs: dict[object, Need] = {}
        self.shapes: dict[Hashable, list[object]] = {}  # results of what only CUDA has, by arguments' shapes

    def run(self, call: Call, index: int, stream: Stream, key: tuple[object, ...]) -> None:
        """Account for one call of an operator that has a row, or of one that is not known."""
        device, row = self._machine.devices[index], call.plan.row
        key = (*key, *_numbers(call.given if call.kwargs else call.args), CUDNN(), BENCHMARK(), DETERMINISTIC())
        need = self._needs.get(key)
        if need is None:
            demand = Demand(call, device.gpu)
            need = self._needs[key] = row.need(demand) if isinstance(row, Row) else unknown(demand)
            if need.search:
                _search(device, stream, need.search)
        if need.kept:
            self._keep(device, stream)
        elif need.sizes:
            self.take(device, stream, need.sizes, need.spare)
        if need.unsure:
            device.at_most(device.allocator.memory_allocated() + sum(need.sizes) + need.unsure, call.plan.name)

    def take(self, device: Device, stream: Stream, sizes: tuple[int, ...], spare: bool = False) -> None:
        """Take these bytes and give them back; the program's out of memory where there are none, unless `spare`."""
        blocks = []
        try:
            for size in sizes:
                blocks.append(device.allocator.malloc(size, stream.index))
        except OutOfMemory as error:
            if not spare:
                raise self._out_of_memory(error) from None
        finally:
            free = device.allocator.free
            for block in reversed(blocks):
                if block is not None:
                    free(block)


def _search(device: Device, stream: Stream, size: int) -> None:
    """What `cudnn.benchmark` does to memory before the first convolution of its shapes.

    Algorithms are tried in a workspace, half as large each time that there is no memory for it. Then PyTorch gives all
    cached memory back to the driver (aten/src/ATen/native/cudnn/Conv_v8.cpp, generate_and_filter_plans and
    run_single_conv).
    """
    allocator = device.allocator
    while size:
        try:
            block = allocator.malloc(size, stream.index)
        except OutOfMemory:
            size //= 2
            continue
        if block is not None:
            allocator.free(block)
        break
    allocator.empty_cache()


def _numbers(values: Arguments) -> list[Hashable]:
    """What of a call's arguments decides a formula besides shapes and types: numbers, and how tensors lie in memory."""
    found: list[Hashable] = []
    for value in values:
        kind = value.__class__
        if kind is torch.Tensor or isinstance(value, torch.Tensor):
            try:
                found.append(STRIDES(value))
            except RuntimeError:  # sparse and nested tensors have none
                continue
        elif kind is int or kind is bool or kind is float or kind is str:
            found.append(value)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], (int, bool)):
            found.append(tuple(value))
    return found
