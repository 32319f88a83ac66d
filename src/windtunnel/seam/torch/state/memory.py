"""Device memory: contexts, out of memory, cuBLAS's workspaces, and what else occupies a GPU."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Hashable
from typing import Any, cast

import torch

from windtunnel.machine.device import Device
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.host_allocator import HostAllocator
from windtunnel.machine.memory.oom_text import OutOfMemory, message
from windtunnel.machine.memory.settings import Settings, parse, text_of
from windtunnel.machine.stream import Stream
from windtunnel.seam.torch.scratch.cublaslt import lt_workspace_bytes
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.state.history import History
from windtunnel.seam.torch.state.loaded import Loaded
from windtunnel.seam.torch.state.notes import Notes
from windtunnel.seam.torch.state.ranks import Ranks
from windtunnel.seam.torch.tags import VERSION, Storage

MAIN, BACKWARD, WORKER = 0, 1, 2
"""Whose cuBLAS handle it is: PyTorch gives each thread one, autograd's thread of a device among them, and a workspace
to each handle on each stream (ATen/cuda/CublasHandlePool.cpp). Threads that a program starts are taken to share one."""

PEAK_BAND = 0.05
"""Rounded up, how far modelled peaks of training were from recorded and published ones: docs/memory.md has them."""

HOPPER = (9, 0)
DRIVER_GIVES = ("cudaMalloc", "cuMemMap")


class Memory:
    """What a process knows of its devices' memory."""

    def __init__(
        self,
        core: Core,
        host_allocator: HostAllocator,
        notes: Notes,
        history: History,
        ranks: Ranks,
        loaded: Loaded,
    ) -> None:
        self.core = core
        self.notes = notes
        self.history = history
        self.ranks = ranks
        self.loaded = loaded
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.workspaces: dict[tuple[int, int, int], list[Block | None]] = {}
        self.lt_workspaces: set[tuple[int, int, int]] = set()
        self.handles: set[tuple[int, str, int]] = set()  # (device, library, whose), as `handles` makes them
        self.workspace_sizes: dict[str, int] = {}  # what the program set: "cublas", "cublaslt"
        self.raw: dict[int, tuple[int, Block]] = {}
        self.registered: dict[int, int] = {}  # address -> bytes of host memory that `cudaHostRegister` page-locked
        self.caching = True
        for device in core.machine.devices:
            device.peak_band = PEAK_BAND
            device.driver.on_call = self._price(device)
            device.plan_cache.on_evict = self._plan_leaves(device)
        if core.machine.devices:
            host_allocator.alloc_ns = self._page_lock
            host_allocator.may_query = core.may_be_unsafe
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
            self.enable_caching(False)
        self.outside: Callable[[int], tuple[Storage, int] | None] = lambda address: None  # what CUDA's driver gave

    # ------------------------------------------------------------------ time

    def _price(self, device: Device) -> Callable[[str, int], None]:
        """What a driver's call costs the host; giving memory back also waits for the device."""
        core = self.core
        waited_for = 0

        def call(name: str, size: int) -> None:
            nonlocal waited_for
            host = core.local.host
            if name == "cudaMalloc":
                core.may_be_unsafe()
            if name in DRIVER_GIVES:
                host.now_ns += device.cost.malloc_ns(size)
                return
            submitted = sum(stream.epoch for stream in device.streams)
            if name == "cudaFree" and submitted != waited_for:
                waited_for = submitted
                core.machine.synchronize_device(host, device, name, core.site())
            host.now_ns += device.cost.free_ns(size)

        return call

    def _plan_leaves(self, device: Device) -> Callable[[Hashable, int], None]:
        """What a cuFFT plan holds is the driver's memory, not PyTorch's; it comes back when the plan is dropped."""

        def left(key: Hashable, size: int) -> None:
            device.driver.occupied_bytes -= size

        return left

    def _page_lock(self, size: int) -> int:
        self.core.may_be_unsafe()
        duration = self.core.machine.devices[0].cost.host_malloc_ns(size)
        self.core.local.host.now_ns += duration
        return duration

    # ------------------------------------------------------------------ taking

    def create_context(self, device: Device) -> None:
        """A process's first use of a device makes a CUDA context, which takes memory of its own."""
        machine = self.core.machine
        with machine.turns.lock:
            if device.context:
                return
            device.context = True
            device.driver.occupied_bytes += device.context_bytes
            self.ranks.opened(device)
            machine.first_use(self.core.local.host, device, "context")

    def take(self, device: Device, size: int, stream: int) -> Block | None:
        """A block without a storage (a workspace, raw memory); raises torch's OutOfMemoryError."""
        self.core.drain(device)
        self.create_context(device)
        try:
            return device.allocator.malloc(size, stream)
        except OutOfMemory as error:
            raise self.out_of_memory(error) from None

    # ------------------------------------------------------------------ what PyTorch asks

    def check_settings(self) -> None:
        """Raise what PyTorch raises at CUDA's first use when the allocator's settings in the environment are bad."""
        backend = read_settings(text_of(os.environ)).backend
        if backend != "native":
            self.notes.note("not-modelled", self.core.site(), what="allocator", name=backend)

    def info(self, index: int) -> tuple[int, int]:
        """Free and total bytes, as `cudaMemGetInfo` says."""
        device = self.core.device(index)
        self.core.drain(device)
        self.create_context(device)
        device.asked.add("memory")
        found = device.driver.info()
        return found.free, found.total

    def out_of_memory(self, error: OutOfMemory) -> torch.cuda.OutOfMemoryError:
        """PyTorch's own error for a request that cannot be served; observers hear of it first."""
        facts = error.facts
        total = facts.device_total if facts.allowed_bytes is None else facts.allowed_bytes
        for observer in self.observers:
            observer(facts.device, facts.alloc_size, total, facts.device_free)
        site, size = self.loaded.held(facts.device)
        held: dict[str, str | int] = {}
        if size:
            held = {"loaded_bytes": size, "loaded_at": str(self.core.machine.trace.sites[site])}
        others = sum(holder.used_bytes for holder in facts.others)
        if others:
            held["others_bytes"] = others
        self.notes.note(
            "out-of-memory",
            self.core.site(),
            device=facts.device,
            requested_bytes=facts.requested,
            free_bytes=facts.device_free,
            memory_bytes=total,
            allocated_bytes=facts.allocated,
            reserved_bytes=facts.reserved,
            **held,
        )
        return torch.cuda.OutOfMemoryError(message(facts, (VERSION[0], VERSION[1])))

    def is_registered(self, address: int) -> bool:
        """Whether host memory was page-locked by `cudaHostRegister`."""
        return any(start <= address < start + size for start, size in self.registered.items())

    def workspace(self, index: int, stream: int, handle: int = MAIN) -> None:
        """cuBLAS takes its workspace on the first matrix product of a handle and stream, and keeps it."""
        key = index, stream, handle
        if key in self.workspaces:
            return
        device = self.core.device(index)
        self._keep(key, self.take(device, self.cublas_bytes(device), stream))

    def lt_workspace(self, device: Device, stream: Stream) -> None:
        """cuBLASLt takes one beside it on the first product with a bias in its epilogue (PyTorch 2.9 to 2.11)."""
        key = device.index, stream.index, self.handle()
        if key not in self.lt_workspaces:
            self.lt_workspaces.add(key)
            size = self.workspace_sizes.get("cublaslt", lt_workspace_bytes())
            self._keep(key, self.take(device, size, stream.index))

    def handle(self) -> int:
        """Whose cuBLAS handle this thread uses."""
        local = self.core.local
        return BACKWARD if local.callers else MAIN if not local.host.index else WORKER

    def _keep(self, key: tuple[int, int, int], block: Block | None) -> None:
        self.workspaces.setdefault(key, []).append(block)
        self.history.mark(block, "workspace")

    def cublas_bytes(self, device: Device) -> int:
        """The size of cuBLAS's workspace on a device: what the program set, or the default."""
        found = self.workspace_sizes.get("cublas")
        return cublas_workspace_bytes(device) if found is None else found

    def clear_workspaces(self) -> None:
        """Give all cuBLAS workspaces back (`torch._C._cuda_clearCublasWorkspaces`)."""
        for (index, _, _), blocks in self.workspaces.items():
            for block in filter(None, blocks):
                self.core.device(index).allocator.free(block)
        self.workspaces.clear()
        self.lt_workspaces.clear()

    def enable_caching(self, value: bool) -> None:
        """`torch.cuda.caching_allocator_enable`: with False, each tensor is a cudaMalloc of its own from now on."""
        self.caching = value
        for device in self.core.machine.devices:
            if not isinstance(device.allocator, Uncached):
                if value:
                    continue
                device.allocator = cast(CachingAllocator, Uncached(device.allocator, self))


def cublas_workspace_bytes(device: Device) -> int:
    """The workspace that PyTorch gives cuBLAS on each stream; CUBLAS_WORKSPACE_CONFIG (":KiB:count...") changes it.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp: ":4096:2:16:8", and 32 MiB on Hopper.
    """
    default = 32 << 20 if device.gpu.compute_capability == HOPPER else 8519680
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if text is None:
        return default
    pairs = re.findall(r":([0-9]+):([0-9]+)", text)
    if not pairs:
        warnings.warn(
            f"Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of {default} bytes.", stacklevel=2
        )
        return default
    return sum(int(size) * int(count) for size, count in pairs) << 10


class RawBlock(Block):
    """Memory of a tensor that was made while the caching allocator was off: one cudaMalloc, in no segment."""

    __slots__ = ()

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = self.requested = size
        self.uses = None
        self.accesses = None
        self.context = None


class Uncached:
    """A device's allocator once caching was turned off; what was cached before stays with the caching one."""

    _caching: CachingAllocator
    _memory: Memory

    def __init__(self, caching: CachingAllocator, memory: Memory) -> None:
        self.__dict__.update(_caching=caching, _memory=memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._caching, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._caching, name, value)

    def malloc(self, requested: int, stream: int = 0, context: object = None) -> Block | None:
        """A block; without caching, straight from the driver and uncounted, as in PyTorch."""
        if self._memory.caching:
            return self._caching.malloc(requested, stream, context)
        if requested <= 0:
            return None
        address = self._caching.driver.malloc(requested)
        if address is None:
            raise RuntimeError("CUDA error: out of memory")
        return RawBlock(address, requested)

    def free(self, block: Block) -> None:
        """Give a block back to where it came from."""
        if isinstance(block, RawBlock):
            self._caching.driver.free(block.address)
        else:
            self._caching.free(block)

    drain = CachingAllocator.drain

    def record_stream(self, block: Block, stream: int) -> None:
        """cudaFree waits for the device, so a block of its own needs no record."""
        if not isinstance(block, RawBlock):
            self._caching.record_stream(block, stream)


def read_settings(text: str, base: Settings | None = None) -> Settings:
    """The allocator's settings; before torch 2.9 every mistake in them is a RuntimeError, and a key's has its own text.

    Source: c10/cuda/CUDAAllocatorConfig.cpp of PyTorch 2.6.
    """
    try:
        return parse(text, base=base)
    except (ValueError, IndexError) as error:
        if VERSION >= (2, 9):
            raise
        unknown = re.match(r"Unrecognized key '(.*)' in Accelerator allocator config", str(error))
        message = f"Unrecognized CachingAllocator option: {unknown[1]}" if unknown else str(error)
        raise RuntimeError(message) from None
