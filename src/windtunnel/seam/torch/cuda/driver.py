"""The emulated driver: `torch._C._cuda_*` and `torch._C._accelerator_*`, under which PyTorch's own Python runs."""

from __future__ import annotations

import ctypes
import functools
import uuid as uuids
import warnings
from collections.abc import Callable
from typing import SupportsInt

import torch

from windtunnel.gpus.gpu import Gpu
from windtunnel.machine.device import Device
from windtunnel.operators.card import CUBLAS, CUSOLVER
from windtunnel.seam.cuda_driver import FIRST_PCI_BUS
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.cuda.streams import CUDA_TYPE
from windtunnel.seam.torch.scratch.cublaslt import lt_workspace_bytes
from windtunnel.seam.torch.state import handles
from windtunnel.seam.torch.state.state import State

C = torch._C
CUDA = torch.device("cuda")


def patches(state: State) -> list[Patch]:
    """The functions of `torch._C`, `torch.cuda` and `torch.accelerator` that a CUDA driver stands behind."""
    functions = {**_devices(state), **_streams(state), **_switches(state)}
    found = [Patch(C, f"_cuda_{name}", value) for name, value in functions.items()]
    found += [Patch(C, f"_accelerator_{name}", value) for name, value in _accelerator(state).items()]
    found += [Patch(C, name, value) for name, value in _hooks(state).items()]
    return found + _cuda_module(state) + _vitals(state)


def _vitals(state: State) -> list[Patch]:
    stock: Callable[[], object] | None = getattr(torch, "read_vitals", None)  # newer versions have none
    if stock is None:
        return []

    def read_vitals() -> str:
        said = str(stock())
        return said if state.visible is None else said.replace(UNUSED, USED)

    return [Patch(torch, "read_vitals", read_vitals)]


def _devices(state: State) -> dict[str, object]:
    local = state.local

    def init() -> None:
        state.memory.check_settings()
        state.initialize()

    def get_device_count() -> int:
        return state.device_count()

    def set_device(index: int) -> None:
        local.device = state.index(index) if index >= 0 else local.device

    def exchange(index: int) -> int:
        before = local.device
        if index >= 0:
            local.device = state.index(index)
        return before

    def synchronize() -> None:
        state.machine.synchronize_device(state.host(), state.use(local.device), site=state.site())
        state.synchronized("cudaDeviceSynchronize")
        state.gpu_trace.synchronized_device()

    return {
        "init": init,
        "getDeviceCount": get_device_count,
        "getDevice": lambda: local.device,
        "setDevice": set_device,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronize": synchronize,
        "isInBadFork": lambda: state.in_bad_fork(),
        "canDeviceAccessPeer": lambda one, other: (
            one != other and state.device(one).gpu.is_peer(state.device(other).gpu)
        ),
        "getArchFlags": lambda: " ".join(sorted({f"sm_{a}{b}" for a, b in _capabilities(state)})),
        "getCompiledVersion": lambda: state.cuda_version[0] * 1000 + state.cuda_version[1] * 10,
        "hasPrimaryContext": lambda index: state.device(index).context,
        "ipc_collect": lambda: None,
        "sleep": lambda cycles: _sleep(state, cycles),
        "busy_wait_for_flag": lambda: None,
        "get_cudnn_benchmark_limit": lambda: 10,
        "set_cudnn_benchmark_limit": lambda limit: None,
        "isCurrentStreamCapturing": lambda: state.capturing(local.streams[local.device]),
    }


def _capabilities(state: State) -> set[tuple[int, int]]:
    return {device.gpu.compute_capability for device in state.machine.devices}


def _sleep(state: State, cycles: int) -> None:
    local = state.local
    device = state.use(local.device)
    state.machine.busy(local.host, state.current_stream(local.device), cycles * 1000 // device.gpu.clock_mhz)


def _streams(state: State) -> dict[str, object]:
    local = state.local

    def current(index: int) -> tuple[int, int, int]:
        return state.current_id(state.current_stream(index)), index, CUDA_TYPE

    def default(index: int) -> tuple[int, int, int]:
        return 0, index, CUDA_TYPE

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        state.set_stream(device_index, stream_id)
        local.device = device_index

    def raw(index: int = 0) -> int:
        return int(state.wrap_stream(state.current_stream(index)).cuda_stream)

    def handle(library: str, first: int) -> int:
        handles.make(state, library, local.device)
        return first + local.device * 4096

    return {
        "getCurrentStream": current,
        "getDefaultStream": default,
        "setStream": set_stream,
        "getCurrentRawStream": raw,
        "getCurrentBlasHandle": lambda: handle(CUBLAS, 0x7F00_0000_0000),
        "getCurrentSolverHandle": lambda: handle(CUSOLVER, 0x7F01_0000_0000),
    }


PROTOTYPE = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"


def _switches(state: State) -> dict[str, object]:
    told: list[bool] = []

    def set_debug_mode(mode: int) -> None:
        if not told:
            told.append(True)
            warnings.warn(PROTOTYPE, stacklevel=3)
        if isinstance(mode, bool) or not isinstance(mode, int):
            raise RuntimeError("invalid argument to set_sync_debug_mode")
        if mode not in (0, 1, 2):
            raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
        state.sync_debug_mode = mode

    return {
        "set_sync_debug_mode": set_debug_mode,
        "get_sync_debug_mode": lambda: state.sync_debug_mode,
        "clearCublasWorkspaces": lambda: state.memory.clear_workspaces(),
        **_workspace_sizes(state),
        "attach_out_of_memory_observer": lambda observer: state.memory.observers.append(observer),
    }


def _workspace_sizes(state: State) -> dict[str, object]:
    """What `torch.backends.cuda.cublas_workspace_size` asks and sets; handles that have a workspace keep theirs."""
    memory = state.memory

    def set_size(name: str) -> object:
        return lambda size: memory.workspace_sizes.__setitem__(name, int(size))

    return {
        "getCublasWorkspaceSize": lambda: memory.cublas_bytes(state.device(state.local.device)),
        "setCublasWorkspaceSize": set_size("cublas"),
        "getCublasLtWorkspaceSize": lambda: memory.workspace_sizes.get("cublaslt", lt_workspace_bytes()),
        "setCublasLtWorkspaceSize": set_size("cublaslt"),
    }


def _accelerator(state: State) -> dict[str, object]:
    local = state.local

    def synchronize(index: int) -> None:
        state.machine.synchronize_device(state.host(), state.use(index), site=state.site())

    def set_index(index: int) -> None:
        torch.cuda._lazy_init()
        local.device = state.index(index)

    def exchange(index: int) -> int:
        torch.cuda._lazy_init()
        before = local.device
        if index >= 0:
            local.device = state.index(index)
        return before

    def capability(index: int) -> dict[str, object]:
        return {"supported_dtypes": set(SUPPORTED_DTYPES)}

    def current(index: int) -> object:
        torch.cuda._lazy_init()
        return state.wrap_stream(state.current_stream(local.device if index is None else index))

    return {
        "getAccelerator": lambda: CUDA,
        "getDeviceIndex": lambda: local.device,
        "setDeviceIndex": set_index,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronizeDevice": synchronize,
        "getDefaultGenerator": lambda index: state.generators[index],
        "getDeviceCapability": capability,
        "getStream": current,
        "setStream": lambda stream: torch.cuda.set_stream(stream),
        "deviceCount": lambda: state.device_count(),
        "hooks_device_count": lambda: state.device_count(),
        "hooks_set_current_device": set_index,
        "hooks_get_current_device": lambda: local.device,
        "hooks_exchange_device": exchange,
        "hooks_maybe_exchange_device": exchange,
    }


SUPPORTED_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip


def _hooks(state: State) -> dict[str, object]:
    return {
        "_has_cuda": True,
        "has_cuda": True,
        "_get_accelerator": lambda check=None: CUDA,
        "_CudaDeviceProperties": DeviceProperties,
        "_cudart": Cudart(state),
    }


def _asked(what: str, fact: Callable[[Gpu], object]) -> property:
    """A property in which GPUs of one architecture differ: that the program asked for it is kept."""

    def read(self: DeviceProperties) -> object:
        self._device.asked.add(what)
        return fact(self._device.gpu)

    return property(read)


class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns; sizes in bytes."""

    def __init__(self, device: Device) -> None:
        gpu = device.gpu
        self._device = device
        self.major, self.minor = gpu.compute_capability
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = gpu.max_threads_per_sm
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = gpu.registers_per_sm
        self.shared_memory_per_block = gpu.shared_memory_per_block_bytes
        self.shared_memory_per_block_optin = gpu.shared_memory_per_block_optin_bytes
        self.shared_memory_per_multiprocessor = gpu.shared_memory_per_sm_bytes
        self.warp_size = 32
        self.uuid = uuids.UUID(device.uuid.removeprefix("GPU-"))
        self.pci_bus_id, self.pci_device_id, self.pci_domain_id = FIRST_PCI_BUS + device.index, 0, 0

    name = _asked("name", lambda gpu: gpu.name)
    total_memory = _asked("memory", lambda gpu: gpu.memory_bytes)
    multi_processor_count = _asked("multiprocessors", lambda gpu: gpu.sm_count)
    L2_cache_size = _asked("L2 cache", lambda gpu: gpu.l2_bytes)
    clock_rate = _asked("clock", lambda gpu: gpu.clock_mhz * 1000)
    memory_clock_rate = _asked("clock", lambda gpu: gpu.memory_clock_mhz * 1000)
    memory_bus_width = _asked(
        "bandwidth", lambda gpu: round(gpu.memory_bandwidth_bytes_per_s * 8 / (gpu.memory_clock_mhz * 2e6))
    )
    gcnArchName = name

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


UNUSED, USED = "CUDA.used\t\t False", "CUDA.used\t\t true"
"""What `torch.read_vitals()` says before and after CUDA's first use (aten/src/ATen/core/Vitals.cpp)."""

RAW_STREAM_BASE = 0x5582_0000_0000
"""Where handles of `cudaStreamCreate` begin: any address that no other stream has will do."""

ERRORS = {0: "no error", 1: "invalid argument", 2: "out of memory", 3: "initialization error",
          100: "no CUDA-capable device is detected", 101: "invalid device ordinal", 400: "invalid resource handle",
          600: "device not ready", 700: "an illegal memory access was encountered", 719: "unspecified launch failure",
          999: "unknown error"}  # fmt: skip
"""Texts of CUDA's error codes (CUDA runtime API, cudaError)."""


class Cudart:
    """What `torch.cuda.cudart()` returns: the few runtime functions that PyTorch binds."""

    class cudaError:  # noqa: N801 - CUDA's own name
        """Error codes; 0 is success."""

        success = 0

        def __init__(self, code: int = 0) -> None:
            self.code = int(code)

        def __eq__(self, other: object) -> bool:
            return other == self.code or (isinstance(other, Cudart.cudaError) and other.code == self.code)

        def __hash__(self) -> int:
            return hash(self.code)

        def __int__(self) -> int:
            return self.code

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = 0

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Free and total bytes of a device."""
        return self._state.memory.info(device)

    def cudaGetErrorString(self, error: SupportsInt) -> str:
        """The text of an error code."""
        return ERRORS.get(int(error), "unrecognized error code")

    def cudaProfilerStart(self) -> object:
        """Nothing to start: the emulation always records."""
        return self.cudaError(0)

    cudaProfilerStop = cudaProfilerStart

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> object:
        """Page-lock memory that the program owns."""
        self._state.memory.registered[pointer] = size
        return self.cudaError(0)

    def cudaHostUnregister(self, pointer: int) -> object:
        """Undo `cudaHostRegister`; 1 (invalid argument) for memory that was not registered."""
        return self.cudaError(0 if self._state.memory.registered.pop(pointer, None) is not None else 1)

    def cudaStreamCreate(self, pointer: int) -> object:
        """A blocking stream: `pointer` gets its handle, of use to `torch.cuda.ExternalStream` and nothing else."""
        self._streams += 1
        ctypes.c_void_p.from_address(pointer).value = RAW_STREAM_BASE + self._streams * 16
        return self.cudaError(0)

    def cudaStreamDestroy(self, handle: int) -> object:
        """Give a stream of `cudaStreamCreate` up; its work goes on."""
        return self.cudaError(0 if RAW_STREAM_BASE < handle <= RAW_STREAM_BASE + self._streams * 16 else 400)


def _cuda_module(state: State) -> list[Patch]:
    cuda = torch.cuda
    version = ".".join(map(str, state.cuda_version))
    properties = functools.cache(DeviceProperties)  # one object a device

    def mem_get_info(device: object = None) -> tuple[int, int]:
        cuda._lazy_init()
        index = state.local.device if device is None else state.index(device)
        return state.memory.info(index)

    return [
        Patch(cuda, "_initialized", False),
        Patch(cuda, "_cached_device_count", None),
        Patch(cuda, "_queued_calls", list(cuda._queued_calls)),
        Patch(cuda, "default_generators", ()),  # the first use of CUDA makes them
        Patch(cuda, "_cudart", Cudart(state)),
        Patch(cuda, "_device_count_nvml", lambda: -1),
        Patch(cuda, "_nvml_based_avail", lambda: False),
        Patch(cuda, "_get_device_properties", lambda index: properties(state.device(index))),
        Patch(cuda, "_exchange_device", lambda device: C._cuda_exchangeDevice(device)),
        Patch(cuda, "_maybe_exchange_device", lambda device: C._cuda_maybeExchangeDevice(device)),
        Patch(cuda, "mem_get_info", mem_get_info),
        Patch(cuda.memory, "mem_get_info", mem_get_info),
        Patch(cuda, "has_half", True),
        # What a CUDA build was compiled with stays: torchvision compares it with its own.
        Patch(torch.version, "cuda", torch.version.cuda or version),
        Patch(torch.backends.cuda, "is_built", lambda: True),
        Patch(cuda, "is_current_stream_capturing", lambda: state.capturing(state.local.streams[state.local.device])),
        Patch(cuda.graphs, "is_current_stream_capturing",
              lambda: state.capturing(state.local.streams[state.local.device])),
        Patch(cuda, "_is_in_bad_fork", lambda: state.in_bad_fork()),
        Patch(torch.cuda.random, "_lazy_init", lambda: cuda._lazy_init()),
    ]  # fmt: skip
