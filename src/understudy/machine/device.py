"""One emulated GPU: its streams, its engines, its memory and its plan cache."""

from __future__ import annotations

import uuid as uuids
from collections import deque
from collections.abc import Callable
from typing import Any

from understudy.cost.model import CostModel
from understudy.gpus.gpu import Gpu
from understudy.machine.allocator import CachingAllocator
from understudy.machine.plan_cache import PlanCache
from understudy.machine.segments import DeviceMemory
from understudy.machine.stream import Stream

POOL_STREAMS = 32
"""Streams that PyTorch keeps per priority; the 33rd that is asked for is the first again (c10/cuda/CUDAStream.cpp)."""

FULL = 1000
"""Occupancy in thousandths: what one device can run at once."""


def uuid_of(key: str, index: int) -> str:
    """The UUID of the GPU at that place of a machine: the same in every run, and what nvidia-smi prints."""
    return f"GPU-{uuids.uuid5(uuids.NAMESPACE_DNS, f'{key}.{index}.understudy')}"


class Device:
    """A GPU of the machine.

    `streams` holds every stream that was ever made; `streams[0]` is the default stream. `frees` collects blocks whose
    storages died, on whatever thread: the owner drains it before it decides anything about memory.
    """

    def __init__(
        self,
        index: int,
        gpu: Gpu,
        cost: CostModel,
        allocator: CachingAllocator,
        driver: DeviceMemory,
        plan_cache: PlanCache,
        new_agent: Callable[[], int],
        context_bytes: int = 0,
    ) -> None:
        self.index = index
        self.gpu = gpu
        self.cost = cost
        self.allocator = allocator
        self.driver = driver
        self.context_bytes = context_bytes
        self.physical = index
        self.uuid = uuid_of(gpu.key, index)
        self.plan_cache = plan_cache
        self.frees: deque[Any] = deque()
        self.streams: list[Stream] = []
        self.engine_ready_ns = {"HtoD": 0, "DtoH": 0, "DtoD": 0}
        self.running: list[tuple[int, int]] = []  # (end, occupancy) of kernels, used once two streams are busy
        self.context = False  # whether a CUDA context was created here
        self.launches = 0
        self._new_agent = new_agent
        self._pools: dict[int, list[Stream]] = {}
        self._next: dict[int, int] = {}
        self.default_stream = self._make(0)

    def _make(self, priority: int, blocking: bool = False) -> Stream:
        stream = Stream(self.index, len(self.streams), self._new_agent(), priority, blocking)
        self.streams.append(stream)
        return stream

    def renumber(self, index: int) -> None:
        """Give the device the number that the program sees it under; `physical` keeps the machine's own."""
        self.index = index
        self.allocator.device = index
        for stream in self.streams:
            stream.device = index

    def pool_stream(self, priority: int = 0) -> Stream:
        """The next stream of the pool of that priority, round robin; streams are made when first asked for."""
        pool = self._pools.setdefault(priority, [])
        number = self._next.get(priority, 0)
        self._next[priority] = number + 1
        if len(pool) < POOL_STREAMS:
            pool.append(self._make(priority))
        return pool[number % POOL_STREAMS]

    def external_stream(self) -> Stream:
        """A stream made outside PyTorch, which waits for the default stream as CUDA's blocking streams do."""
        return self._make(0, blocking=True)

    def place(self, start_ns: int, duration_ns: int, occupancy: int) -> int:
        """The earliest time from `start_ns` at which a kernel of that occupancy (thousandths) finds room."""
        running = self.running = [entry for entry in self.running if entry[0] > start_ns]
        running.sort()
        used = sum(part for _, part in running)
        start = start_ns
        for end, part in running:
            if used + occupancy <= FULL:
                break
            start = end
            used -= part
        running.append((start + duration_ns, occupancy))
        return start

    def ready_ns(self) -> int:
        """When all that was submitted to any of its streams is done."""
        return max(stream.ready_ns for stream in self.streams)
