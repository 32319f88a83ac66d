"""Device memory under PyTorch's names: statistics, out of memory, workspaces, and what else occupies a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from understudy.machine.alloc_conf import parse
from understudy.machine.oom_text import OutOfMemory, message
from understudy.seam.patching import Patch

if TYPE_CHECKING:
    from understudy.seam.torch.state import State

C = torch._C
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


class Memory:
    """What a process knows of its devices' memory."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.workspaces: dict[tuple[int, int], Any] = {}
        self.raw: dict[int, tuple[int, Any]] = {}

    def info(self, index: int) -> tuple[int, int]:
        """Free and total bytes, as `cudaMemGetInfo` says."""
        device = self.state.device(index)
        self.state.drain(device)
        self.state.create_context(device)
        found = device.driver.info()
        return found.free, found.total

    def out_of_memory(self, error: OutOfMemory) -> torch.cuda.OutOfMemoryError:
        """PyTorch's own error for a request that cannot be served; observers hear of it first."""
        facts = error.facts
        for observer in self.observers:
            observer(facts.device, facts.alloc_size, facts.device_total, facts.device_free)
        return torch.cuda.OutOfMemoryError(message(facts, (VERSION[0], VERSION[1])))

    def workspace(self, index: int, stream: int) -> None:
        """cuBLAS takes its workspace on the first matrix product of a stream, and keeps it."""
        key = index, stream
        if key in self.workspaces:
            return
        device = self.state.device(index)
        size = 32 << 20 if device.gpu.compute_capability[0] == 9 else 8519680
        self.workspaces[key] = self.state.take(device, size, stream)

    def clear_workspaces(self) -> None:
        """Give all cuBLAS workspaces back (`torch._C._cuda_clearCublasWorkspaces`)."""
        for (index, _), block in self.workspaces.items():
            self.state.device(index).allocator.free(block)
        self.workspaces.clear()


def patches(state: State) -> list[Patch]:
    """The functions of `torch._C` that speak of memory."""
    functions = {**_statistics(state), **_allocator(state), **_raw(state)}
    found = [Patch(C, f"_cuda_{name}", value) for name, value in functions.items()]
    found += [Patch(C, f"_accelerator_{name}", value) for name, value in _accelerator(state).items()]
    found.append(Patch(C, "_host_emptyCache", lambda: state.host_allocator.empty_cache()))
    return found


def _statistics(state: State) -> dict[str, Any]:
    def stats(index: int) -> dict[str, Any]:
        device = state.device(index)
        state.drain(device)
        return dict(device.allocator.memory_stats())

    def snapshot(pool: Any = None) -> dict[str, Any]:
        return state.history.snapshot(pool)

    def reset_peak(index: int) -> None:
        state.drain(state.device(index))
        state.device(index).allocator.reset_peak()

    def reset_accumulated(index: int) -> None:
        state.drain(state.device(index))
        state.device(index).allocator.reset_accumulated()

    return {
        "memoryStats": stats,
        "resetPeakMemoryStats": reset_peak,
        "resetAccumulatedMemoryStats": reset_accumulated,
        "memorySnapshot": snapshot,
        "record_memory_history": lambda *args, **kwargs: state.history.start(*args, **kwargs),
        "record_memory_history_legacy": lambda *args, **kwargs: state.history.start_legacy(*args, **kwargs),
        "hostMemoryStats": lambda: state.host_allocator.memory_stats(),
        "resetPeakHostMemoryStats": lambda: state.host_allocator.reset_peak(),
        "resetAccumulatedHostMemoryStats": lambda: state.host_allocator.reset_accumulated(),
        "setMemoryMetadata": lambda text: state.history.set_metadata(text),
        "getMemoryMetadata": lambda: state.history.metadata,
    }


def _allocator(state: State) -> dict[str, Any]:
    def empty_cache() -> None:
        for device in state.machine.devices:
            state.drain(device)
            device.allocator.empty_cache()

    def set_fraction(fraction: float, index: int) -> None:
        state.device(index).allocator.set_memory_fraction(fraction)

    return {
        "emptyCache": empty_cache,
        "setMemoryFraction": set_fraction,
        "getMemoryFraction": lambda index: state.device(index).allocator.memory_fraction,
        "getAllocatorBackend": lambda: "native",
        "cudaCachingAllocator_set_allocator_settings": lambda text: state.set_alloc_conf(parse(text)),
        "cudaCachingAllocator_is_enabled": lambda: True,
        "cudaCachingAllocator_enable": lambda value: None,
        "cudaHostAllocator": lambda: 0x7F02_0000_0000,
    }


def _raw(state: State) -> dict[str, Any]:
    def allocate(size: int, stream: int) -> int:
        index = state.local.device
        device = state.device(index)
        found = next((s for s in device.streams if state.wrap_stream(s).cuda_stream == stream), device.default_stream)
        block = state.take(device, size, found.index)
        if block is None:
            return 0
        state.memory.raw[block.address] = (index, block)
        return int(block.address)

    def delete(address: int) -> None:
        entry = state.memory.raw.pop(address, None)
        if entry is None:
            if address:
                raise RuntimeError(f"invalid device pointer: {address:#x}")
            return
        index, block = entry
        state.device(index).allocator.free(block)

    return {"cudaCachingAllocator_raw_alloc": allocate, "cudaCachingAllocator_raw_delete": delete}


def _accelerator(state: State) -> dict[str, Any]:
    return {
        "isAllocatorInitialized": lambda: state.visible is not None,
        "emptyCache": lambda: C._cuda_emptyCache(),
        "emptyHostCache": lambda: state.host_allocator.empty_cache(),
        "getDeviceStats": lambda index: C._cuda_memoryStats(index),
        "resetAccumulatedStats": lambda index: C._cuda_resetAccumulatedMemoryStats(index),
        "resetPeakStats": lambda index: C._cuda_resetPeakMemoryStats(index),
        "getMemoryInfo": lambda index: state.memory.info(index),
        "setAllocatorSettings": lambda text: state.set_alloc_conf(parse(text)),
        "getAllocatorSettings": lambda: state.alloc_conf.text,
    }
