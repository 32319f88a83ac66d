"""The emulated driver that the stub library asks, by the names of CUDA's functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from windtunnel import ptx
from windtunnel.machine.device import Device
from windtunnel.seam.cuda_driver import ATTRIBUTES
from windtunnel.seam.cuda_runtime import clocks, errors, limits
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.memory import MemoryCalls, put, word
from windtunnel.seam.cuda_runtime.modules import KernelFunction, Modules
from windtunnel.seam.cuda_runtime.names import demangled
from windtunnel.seam.cuda_runtime.process import Process
from windtunnel.seam.cuda_runtime.streams import StreamCalls

MAX_DYNAMIC_SHARED = 8
MORE_ATTRIBUTES: dict[int, Callable[[Device], int]] = {
    2: lambda device: 1024,
    3: lambda device: 1024,
    4: lambda device: 64,
    5: lambda device: 2**31 - 1,
    6: lambda device: 65535,
    7: lambda device: 65535,
    9: lambda device: 65536,
    11: lambda device: 2**31 - 1,
    12: lambda device: device.gpu.registers_per_sm,
    14: lambda device: 512,
    15: lambda device: 1,
    17: lambda device: 0,
    18: lambda device: 0,
    19: lambda device: 1,
    20: lambda device: 0,
    31: lambda device: 1,
    32: lambda device: 1,
    34: lambda device: 0,
    35: lambda device: 0,
    37: lambda device: bus_width(device),
    40: lambda device: 3,
    50: lambda device: 0,
    78: lambda device: 1,
    79: lambda device: 1,
    80: lambda device: 1,
    83: lambda device: 1,
    84: lambda device: 0,
    88: lambda device: 0,
    89: lambda device: 1,
    95: lambda device: 1,
    106: lambda device: limits.MOST_RESIDENT,
    111: lambda device: limits.RESERVED if device.gpu.compute_capability >= (8, 0) else 0,
    115: lambda device: 1,
}
"""Attributes that the driver's own table does not have (`cudaDeviceAttr`)."""


def bus_width(device: Device) -> int:
    """Bits of the memory's interface, by its bandwidth and its clock (two transfers a clock)."""
    gpu = device.gpu
    return round(gpu.memory_bandwidth_bytes_per_s * 8 / (2e6 * gpu.memory_clock_mhz))


OF_MEMORY = frozenset((
    "cudaMemcpy", "cudaMemcpyAsync", "cudaMemset", "cudaMemsetAsync", "cudaFree", "cudaFreeAsync", "cudaFreeHost",
))  # fmt: skip
"""Calls that are refused for a mistake alone: too many bytes, the wrong direction, memory that is nobody's."""


class HostCodeDriver:
    """Answers to what host code calls; a method returns CUDA's error code, or the number that was asked for."""

    def __init__(self, process: Process, modules: Modules) -> None:
        self.process = process
        self.modules = modules
        self.memory = MemoryCalls(process, modules)
        self.streams = StreamCalls(process, self.memory)
        self.unread: dict[tuple[str, int], tuple[LaunchShape | None, int]] = {}  # what was refused and nobody asked of
        self.opted: dict[int, int] = {}  # dynamic shared memory that a kernel may have, by the host's address of it
        memory, streams = self.memory, self.streams
        self.calls: dict[str, Callable[..., int]] = {
            "register_binary": modules.register_binary,
            "register_function": modules.register_function,
            "register_variable": modules.register_variable,
            "register_managed": modules.register_managed,
            "launch": self.launch,
            "error_read": self.error_read,
            **clocks.CALLS,
            "function_facts": self.function_facts,
            "device_facts": self.device_facts,
            "cudaFuncSetAttribute": self.set_attribute,
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor": self.occupancy,
            "cudaGetDeviceCount": self.device_count,
            "cudaGetDevice": self.get_device,
            "cudaSetDevice": self.set_device,
            "cudaDeviceGetAttribute": self.attribute,
            "cudaDeviceGetStreamPriorityRange": self.priorities,
            "cudaDeviceCanAccessPeer": self.peer,
            "cudaDeviceEnablePeerAccess": self.let_in,
            "cudaDeviceSynchronize": self.synchronize,
            "cudaStreamCreateWithPriority": streams.create,
            "cudaStreamDestroy": streams.destroy,
            "cudaStreamSynchronize": streams.synchronize,
            "cudaStreamQuery": streams.query,
            "cudaStreamWaitEvent": streams.wait_event,
            "cudaStreamGetPriority": streams.priority,
            "cudaStreamIsCapturing": streams.capturing,
            "cudaLaunchHostFunc": streams.host_function,
            "cudaEventCreateWithFlags": streams.create_event,
            "cudaEventDestroy": streams.destroy_event,
            "cudaEventRecord": streams.record,
            "cudaEventQuery": streams.query_event,
            "cudaEventSynchronize": streams.synchronize_event,
            "cudaEventElapsedTime": streams.elapsed,
            "cudaMalloc": memory.malloc,
            "cudaFree": memory.free,
            "cudaMallocAsync": memory.malloc_async,
            "cudaFreeAsync": memory.free_async,
            "cudaMallocManaged": lambda out, size, flags: memory.malloc(out, size, "cudaMallocManaged", True),
            "cudaMallocHost": memory.malloc_host,
            "cudaFreeHost": memory.free_host,
            "cudaHostRegister": memory.register_host,
            "cudaHostUnregister": memory.unregister_host,
            "cudaMemcpy": memory.memcpy,
            "cudaMemcpyAsync": memory.memcpy_async,
            "cudaMemset": memory.memset,
            "cudaMemsetAsync": memory.memset_async,
            "cudaMemGetInfo": memory.info,
            "cudaPointerGetAttributes": memory.attributes,
            "cudaGetSymbolAddress": memory.symbol_address,
            "cudaGetSymbolSize": memory.symbol_size,
        }

    def answer(self, name: str, arguments: tuple[int, ...]) -> int:
        """What a call gives; once the context is lost, its error."""
        lost = self.process.lost()
        if lost and name.startswith(("cuda", "launch")):
            return lost
        error = int(self.calls[name](*arguments))
        if error == errors.INVALID_VALUE and name in OF_MEMORY:
            self.unread[name, self.process.site()] = None, error
        return error

    # ------------------------------------------------------------------ launches

    def function(self, host: int) -> KernelFunction | None:
        """The kernel that host code knows by this address."""
        return self.modules.functions.get(host)

    def launch(
        self, host: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, given: int, shared: int, stream: int,
        cooperative: int = 0, file: int = 0, line: int = 0,
    ) -> int:  # fmt: skip
        """Launch a kernel, or say as CUDA does why not; `file` and `line` are where host code has written it."""
        shape = LaunchShape((gx, gy, gz), (bx, by, bz), shared, bool(cooperative))
        if not file:
            return self._launch(host, shape, given, stream)
        where = ctypes.string_at(file).decode(errors="replace"), line
        return self.process.at_line(*where, lambda: self._launch(host, shape, given, stream))

    def _launch(self, host: int, shape: LaunchShape, given: int, stream: int) -> int:
        function = self.function(host)
        if function is None:
            return errors.INVALID_FUNCTION
        self.process.begin()
        kernel = function.kernel
        found = self.process.stream(stream)
        gpu = self.process.machine.devices[found.device].gpu
        opted = self.opted.get(host, 0)
        refused = limits.refusal(shape, gpu, kernel.max_threads, kernel.shared_bytes, opted, kernel.registers)
        if found.device != self.process.device():
            refused = errors.INVALID_HANDLE
        if refused:
            self.unread[demangled(function.name), self.process.site()] = shape, refused
            return refused
        self.process.launch(function, shape, gathered(kernel.parameters, given), found)
        return errors.SUCCESS

    def error_read(self) -> int:
        """Host code looks at the last error."""
        self.unread.clear()
        return errors.SUCCESS

    def tell(self) -> None:
        """At the end: note what host code should have asked for, and what it should have given back."""
        for (name, site), (shape, error) in self.unread.items():
            text = errors.table()[error].text
            if shape is None:
                self.process.note("cuda-unchecked-launch", site, call=name, error=text)
                continue
            asked = f"<<<{shape.grid}, {shape.block}, {shape.shared_bytes}>>>"
            self.process.note("cuda-unchecked-launch", site, kernel=name, shape=asked, error=text)
        self.unread.clear()
        self.memory.tell()

    def set_attribute(self, host: int, attribute: int, value: int) -> int:
        """Allow a kernel more dynamic shared memory."""
        function = self.function(host)
        if function is None:
            return errors.INVALID_HANDLE
        if attribute == MAX_DYNAMIC_SHARED:
            gpu = self._device().gpu
            if value < 0 or value + function.kernel.shared_bytes > gpu.shared_memory_per_block_optin_bytes:
                return errors.INVALID_VALUE
            self.opted[host] = value
        return errors.SUCCESS

    def function_facts(self, host: int, out: int) -> int:
        """What is known of a kernel: static shared memory, threads, registers, dynamic shared memory."""
        function = self.function(host)
        if function is None:
            return errors.INVALID_FUNCTION
        kernel = function.kernel
        dynamic = self.opted.get(host, self._device().gpu.shared_memory_per_block_bytes - kernel.shared_bytes)
        for at, value in enumerate((kernel.shared_bytes, kernel.max_threads, registers_of(kernel), dynamic)):
            put(out + 8 * at, value)
        return errors.SUCCESS

    def occupancy(self, out: int, host: int, threads: int, shared: int) -> int:
        """How many blocks of a kernel an SM holds."""
        function = self.function(host)
        if function is None:
            return errors.INVALID_FUNCTION
        if threads < 1:
            return errors.INVALID_VALUE
        kernel = function.kernel
        blocks = limits.resident(threads, shared + kernel.shared_bytes, registers_of(kernel), self._device().gpu)
        put(out, blocks if threads <= kernel.max_threads else 0, 4)
        return errors.SUCCESS

    # ------------------------------------------------------------------ devices

    def _device(self) -> Device:
        return self.process.machine.devices[self.process.device()]

    def device_count(self, out: int) -> int:
        """How many devices there are."""
        put(out, self.process.device_count(), 4)
        return errors.SUCCESS

    def get_device(self, out: int) -> int:
        """The current device."""
        put(out, self.process.device(), 4)
        return errors.SUCCESS

    def set_device(self, index: int) -> int:
        """Make a device current."""
        if not 0 <= index < self.process.device_count():
            return errors.INVALID_DEVICE
        self.process.set_device(index)
        return errors.SUCCESS

    def attribute(self, out: int, attribute: int, index: int) -> int:
        """A fact of a device."""
        if not 0 <= index < self.process.device_count():
            return errors.INVALID_DEVICE
        self.process.begin()
        known = {**ATTRIBUTES, **MORE_ATTRIBUTES}.get(attribute)
        if known is None:
            return errors.INVALID_VALUE
        put(out, known(self.process.machine.devices[index]), 4)
        return errors.SUCCESS

    def device_facts(self, out: int, name: int, room: int, index: int) -> int:
        """What `cudaGetDeviceProperties` says, in the order in which the library takes it."""
        if not 0 <= index < self.process.device_count():
            return errors.INVALID_DEVICE
        self.process.begin()
        device = self.process.machine.devices[index]
        gpu = device.gpu
        facts = (
            gpu.memory_bytes, gpu.shared_memory_per_block_bytes, gpu.registers_per_sm, gpu.clock_mhz * 1000,
            *gpu.compute_capability, gpu.sm_count, gpu.memory_clock_mhz * 1000, bus_width(device), gpu.l2_bytes,
            gpu.max_threads_per_sm, gpu.shared_memory_per_sm_bytes, gpu.shared_memory_per_block_optin_bytes,
        )  # fmt: skip
        for at, value in enumerate(facts):
            put(out + 8 * at, value)
        text = gpu.name.encode()[: room - 1] + b"\0"
        ctypes.memmove(name, text, len(text))
        return errors.SUCCESS

    def priorities(self, least: int, greatest: int) -> int:
        """Priorities of streams."""
        put(least, 0, 4)
        put(greatest, -5, 4)
        return errors.SUCCESS

    def peer(self, out: int, device: int, other: int) -> int:
        """Whether a device reaches another's memory."""
        put(out, int(device != other), 4)
        return errors.SUCCESS

    def let_in(self, device: int) -> int:
        """The current device's kernels may use that device's memory from now on."""
        self._device().peers.add(device)
        return errors.SUCCESS

    def synchronize(self) -> int:
        """The host waits for the current device."""
        process = self.process
        process.begin()
        process.machine.synchronize_device(process.host(), self._device(), site=process.site())
        return process.lost()


def gathered(parameters: Sequence[ptx.Parameter], given: int) -> bytes:
    """The block of a kernel's parameters, of the pointers to them that host code has."""
    made = bytearray()
    for at, parameter in enumerate(parameters):
        address = word(given + 8 * at)
        made += b"\0" * (parameter.offset - len(made)) + ctypes.string_at(address, parameter.size)
    return bytes(made)


def registers_of(kernel: object) -> int:
    """Registers that a thread of a kernel takes, as far as the executor estimates them."""
    return int(getattr(kernel, "registers", 0) or limits.REGISTERS)
