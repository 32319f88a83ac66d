"""One emulated GPU: its streams, its engines, its memory and its plan cache."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable

from windtunnel.cost.model import CostModel
from windtunnel.cost.sustained import Sustained
from windtunnel.gpus.gpu import Gpu
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.occupancy import FULL, Communication, Occupancy, lost
from windtunnel.machine.plan_cache import PlanCache
from windtunnel.machine.reuse import Reuse
from windtunnel.machine.stream import Stream

POOL_STREAMS = 32
"""Streams that PyTorch keeps per priority; the 33rd that is asked for is the first again (c10/cuda/CUDAStream.cpp)."""


def uuid_of(key: str, index: int) -> str:
    """The UUID of the GPU at that place of a machine: the same in every run, and what nvidia-smi prints."""
    return f"GPU-{uuids.uuid5(uuids.NAMESPACE_DNS, f'{key}.{index}.windtunnel')}"


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
        self.sustained = Sustained(gpu)
        self.allocator = allocator
        self.driver = driver
        self.context_bytes = context_bytes
        self.physical = index
        self.uuid = uuid_of(gpu.key, index)
        self.plan_cache = plan_cache
        self.frees = allocator.frees
        self.streams: list[Stream] = []
        self.engine_ready_ns = {"HtoD": 0, "DtoH": 0, "DtoD": 0}
        self.reuse = Reuse()
        self.peers: set[int] = set()  # devices whose memory its kernels may use
        self.occupancy = Occupancy()  # used once there are two streams
        self.communication = Communication()
        self.external: list[Stream] = []  # streams that wait for the default stream, and it for them
        self.context = False  # whether a CUDA context was created here
        self.used: set[str] = set()  # what the host has done here that is done once
        self.asked: set[str] = set()  # facts that the program asked for and GPUs of one architecture differ in
        self.launches = 0
        self.upper_bytes = 0  # the most that may have been allocated at once, where kernels' own memory is not sure
        self.upper_name = ""
        self._earlier_upper = (0, "")  # the same, before the program began its peaks anew
        self.peak_band: float | None = None  # how far modelled peaks were from recorded ones, relative
        self._new_agent = new_agent
        self._pools: dict[int, list[Stream]] = {}
        self._next: dict[int, int] = {}
        self.default_stream = self._make(0)

    def shares(self, other: Device) -> bool:
        """Whether the two copy from memory to memory; PyTorch then lets the kernels of each use the other's, too."""
        is_peer = self.gpu.is_peer(other.gpu)
        if is_peer:
            self.peers.add(other.index)
            other.peers.add(self.index)
        return is_peer

    def _make(self, priority: int, blocking: bool = False, number: int = -1) -> Stream:
        stream = Stream(self.index, len(self.streams), self._new_agent(), priority, blocking, number)
        self.streams.append(stream)
        return stream

    def renumber(self, index: int) -> None:
        """Give the device the number that the program sees it under; `physical` keeps the machine's own."""
        self.index = index
        self.allocator.device = index
        for stream in self.streams:
            stream.device = index

    def drain(self) -> None:
        """Give back the memory of storages that died."""
        self.allocator.drain(self.frees)

    def pool_stream(self, priority: int = 0) -> Stream:
        """The next stream of the pool of that priority, round robin; streams are made when first asked for."""
        number = self._next.get(priority, 0)
        self._next[priority] = number + 1
        return self.pooled(priority, number % POOL_STREAMS)

    def pooled(self, priority: int, number: int) -> Stream:
        """A stream of the pool of that priority by its place there, below `POOL_STREAMS`."""
        pool = self._pools.setdefault(priority, [])
        while len(pool) <= number:
            pool.append(self._make(priority, number=len(pool)))
        return pool[number]

    def external_stream(self, priority: int = 0, blocking: bool = True) -> Stream:
        """A stream made outside PyTorch, which waits for the default stream if it is one of CUDA's blocking streams."""
        made = self._make(priority, blocking)
        if blocking:
            self.external.append(made)
        return made

    def place(self, stream: Stream, issued_ns: int, start_ns: int, duration_ns: int, occupancy: int) -> tuple[int, int]:
        """When from `start_ns` on a kernel of that occupancy (thousandths) finds room, and how long it takes then.

        What it displaces, of later work or of lower priority, is charged to those streams' next work.
        """
        start = self.occupancy.place(issued_ns, start_ns, duration_ns, occupancy, stream.priority)
        if self.occupancy.displaced_ns:
            for other in self.streams:
                if other is not stream and other.priority == stream.priority and other.busy_ns > start:
                    other.ready_ns += self.occupancy.displaced_ns
        duration_ns = self.occupancy.prolong(self.communication, start, duration_ns, occupancy, stream.priority)
        stream.busy_ns = start + duration_ns
        if len(self.occupancy.levels) > 1:
            displaced = self.occupancy.lower(start, stream.priority) + occupancy - FULL
            if displaced > 0:
                for other in self.streams:
                    if other.priority > stream.priority and other.ready_ns > start:
                        other.ready_ns += duration_ns * min(displaced, FULL) // FULL
        return start, duration_ns

    def communicate(self, stream: Stream, share: int, start_ns: int, end_ns: int) -> None:
        """A collective takes a share (thousandths) of the multiprocessors: kernels that run beside it take longer.

        Those that were submitted before are charged to their streams' next work.
        """
        self.communication.add(start_ns, end_ns, share)
        self.communication.forget(start_ns)
        for other in self.streams:
            if other is not stream and other.busy_ns > start_ns:
                other.ready_ns += lost(min(end_ns, other.busy_ns) - start_ns, share)

    def blocks(self, stream: Stream) -> list[Stream]:
        """The streams that CUDA makes `stream` wait for without being asked: an external one and the default one."""
        if stream.blocking:
            return [self.default_stream]
        return self.external if stream.index == 0 else []

    def at_most(self, size: int, name: str) -> None:
        """While the operator `name` ran up to `size` bytes may have been allocated: its kernel's memory is not sure."""
        if size > self.upper_bytes:
            self.upper_bytes, self.upper_name = size, name

    def peak_upper_bound(self) -> tuple[int, str]:
        """The most that may ever have been allocated at once, in bytes, and the operator that makes it unsure."""
        return max(self._earlier_upper, (self.upper_bytes, self.upper_name))

    def reset_peak(self) -> None:
        """Begin the peaks of memory anew, for the program; `most` keeps what a report says."""
        self.allocator.reset_peak()
        self._earlier_upper = self.peak_upper_bound()
        self.upper_bytes, self.upper_name = 0, ""

    def ready_ns(self) -> int:
        """When all that was submitted to any of its streams is done."""
        return max(stream.ready_ns for stream in self.streams)
