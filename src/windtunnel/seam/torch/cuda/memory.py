"""The functions of `torch._C` behind `torch.cuda.memory`: statistics, settings, raw memory, snapshots."""

from __future__ import annotations

import torch

from windtunnel.machine.device import Device
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.memory import read_settings
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import VERSION

C = torch._C
UNKNOWN = "Allocator not initialized for device"
OOM_REJECTIONS = (2, 12)
"""The first PyTorch that counts what `throw_on_cudamalloc_oom` refuses (pytorch/pytorch#179473)."""
FLATTENS_POOLS = (
    "_format_key" in torch.cuda.memory_stats.__code__.co_varnames + torch.cuda.memory_stats.__code__.co_cellvars
)
"""Whether this PyTorch can show statistics by private pool; an older one stumbles over their keys."""


def patches(state: State) -> list[Patch]:
    """The functions of `torch._C` that speak of memory."""
    functions = {**_statistics(state), **_allocator(state), **_raw(state)}
    found = [Patch(C, f"_cuda_{name}", value) for name, value in functions.items()]
    found += [Patch(C, f"_accelerator_{name}", value) for name, value in _accelerator(state).items()]
    found.append(Patch(C, "_host_emptyCache", lambda: state.host_allocator.empty_cache()))
    return found


def _device(state: State, index: int, words: str = "Invalid device argument") -> Device:
    """The device whose allocator is meant, all of which PyTorch makes when CUDA is initialized, and not before.

    C++ writes the number as a character, and a text ends at the first zero: of GPU 0 it says less. Source:
    `assertValidDevice` of c10/cuda/CUDACachingAllocator.cpp; reports: intel/auto-round#1780, pytorch/pytorch#72404.
    """
    if state.visible is None or not 0 <= index < len(state.machine.devices):
        raise RuntimeError(f"{words} {chr(index & 0xFF)}: did you call init?".partition("\0")[0])
    return state.device(index)


def _statistics(state: State) -> dict[str, object]:
    def stats(index: int) -> dict[str, object]:
        device = _device(state, index)
        state.drain(device)
        found = dict(device.allocator.memory_stats())
        if not FLATTENS_POOLS:
            del found["reserved_bytes_by_private_pools"]
        if VERSION < OOM_REJECTIONS:
            del found["num_oom_rejections"]
        return found

    def reset_peak(index: int) -> None:
        device = _device(state, index)
        state.drain(device)
        device.reset_peak()

    def reset_accumulated(index: int) -> None:
        device = _device(state, index)
        state.drain(device)
        device.allocator.reset_accumulated()

    return {
        "memoryStats": stats,
        "resetPeakMemoryStats": reset_peak,
        "resetAccumulatedMemoryStats": reset_accumulated,
        "memorySnapshot": lambda pool=None: state.history.snapshot(pool),
        "record_memory_history": lambda *args: state.history.start(*args),
        "record_memory_history_legacy": lambda *args: state.history.start_legacy(*args),
        "hostMemoryStats": lambda: state.host_allocator.memory_stats(),
        "resetPeakHostMemoryStats": lambda: state.host_allocator.reset_peak(),
        "resetAccumulatedHostMemoryStats": lambda: state.host_allocator.reset_accumulated(),
        "setMemoryMetadata": lambda text: state.history.set_metadata(text),
        "getMemoryMetadata": lambda: state.history.metadata,
    }


def _allocator(state: State) -> dict[str, object]:
    def empty_cache() -> None:
        for device in state.machine.devices:
            state.drain(device)
            device.allocator.empty_cache()

    def set_fraction(fraction: float, index: int) -> None:
        _device(state, index, UNKNOWN).allocator.set_memory_fraction(fraction)

    return {
        "emptyCache": empty_cache,
        "setMemoryFraction": set_fraction,
        "getMemoryFraction": lambda index: _device(state, index, UNKNOWN).allocator.memory_fraction,
        "getAllocatorBackend": lambda: state.alloc_conf.backend,
        "cudaCachingAllocator_set_allocator_settings": lambda text: _set_settings(state, text),
        "cudaCachingAllocator_is_enabled": lambda: state.memory.caching,
        "cudaCachingAllocator_enable": lambda value: state.memory.enable_caching(bool(value)),
        "cudaHostAllocator": lambda: 0x7F02_0000_0000,
    }


def _set_settings(state: State, text: str) -> None:
    settings = read_settings(text, state.alloc_conf)
    state.set_alloc_conf(settings)
    state.host_allocator.settings = settings


def _raw(state: State) -> dict[str, object]:
    def allocate(size: int, stream: int) -> int:
        index = state.local.device
        device = state.device(index)
        found = next((s for s in device.streams if state.wrap_stream(s).cuda_stream == stream), device.default_stream)
        block = state.memory.take(device, size, found.index)
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


def _accelerator(state: State) -> dict[str, object]:
    return {
        "isAllocatorInitialized": lambda: state.visible is not None,
        "emptyCache": lambda: C._cuda_emptyCache(),
        "emptyHostCache": lambda: state.host_allocator.empty_cache(),
        "getDeviceStats": lambda index: C._cuda_memoryStats(index),
        "resetAccumulatedStats": lambda index: C._cuda_resetAccumulatedMemoryStats(index),
        "resetPeakStats": lambda index: C._cuda_resetPeakMemoryStats(index),
        "getMemoryInfo": lambda index: state.memory.info(index),
        "setAllocatorSettings": lambda text: _set_settings(state, text),
        "getAllocatorSettings": lambda: state.alloc_conf.text,
    }
