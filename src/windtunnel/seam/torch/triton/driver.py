"""What Triton asks of a GPU's driver, answered by the emulation: which GPU it is, and which stream is current.

The names are those of `CudaDriver` and `CudaUtils` of triton/backends/nvidia/driver.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import NoReturn, Protocol

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import emulation

ELF64 = b"\x7fELF\x02"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
HANDLES = 5
"""A launcher's arguments between the stream and the kernel's: handles, metadata, two hooks (`CompiledKernel`)."""
BUS_LANES = 32
"""The width of a memory's bus is a multiple of one chip's."""


class WrittenKernel(Protocol):
    """A kernel as the program wrote it."""

    arg_names: Sequence[str]

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., object]:
        """What launches it on a grid."""


class KernelSource(Protocol):
    """What a kernel was compiled from: its function, and the values of arguments that are constants, by place."""

    fn: WrittenKernel
    constants: Mapping[tuple[int, ...], object]


class CompileSettings(Protocol):
    """What a kernel was compiled with."""

    num_warps: int
    num_stages: int


def registers(cubin: bytes, name: str) -> int:
    """The registers that a thread of a compiled kernel uses: the top byte of its section's `sh_info`.

    Source: "CUDA Binary Utilities", ELF sections of a cubin; `cuobjdump -elf` prints the same.
    """
    if not cubin.startswith(ELF64):
        return 0
    header = _HEADER.unpack_from(cubin)
    start, count, names = header[6], header[12], header[13]
    size = header[11]
    sections = [_SECTION.unpack_from(cubin, start + size * at) for at in range(count)]
    table = sections[names][4]
    for section in sections:
        at = table + section[0]
        if cubin[at : cubin.index(b"\0", at)] == b".text." + name.encode():
            return int(section[7]) >> 24
    return 0


class Utils:
    """What is asked of a device, and loading a kernel onto it."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The properties that Triton and its tutorials read."""
        dispatch = emulation()
        assert dispatch is not None
        gpu = dispatch.state.device(device).gpu
        return {
            "max_shared_mem": gpu.shared_memory_per_block_optin_bytes,
            "max_num_regs": gpu.registers_per_sm,
            "multiprocessor_count": gpu.sm_count,
            "warpSize": 32,
            "sm_clock_rate": 1000 * gpu.clock_mhz,
            "mem_clock_rate": 1000 * gpu.memory_clock_mhz,
            "mem_bus_width": BUS_LANES
            * round(gpu.memory_bandwidth_bytes_per_s * 8 / (2e6 * BUS_LANES * gpu.memory_clock_mhz)),
        }

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, threads at most) of a compiled kernel; it is never run."""
        used = registers(binary, name)
        limit = 1024 if not used else max(32, min(1024, 65536 // used // 32 * 32))
        return 1, 1, used, 0, limit

    def unload_module(self, module: int) -> None:
        """Forget a kernel."""

    def set_printf_fifo_size(self, size: int) -> None:
        """The buffer of `device_print`."""

    def fill_1d_tma_descriptor(self, *_: object) -> NoReturn:
        """Refused."""
        raise UnsupportedError("an emulated GPU has no TMA descriptors in memory: use TensorDescriptor of triton.tools")

    fill_2d_tma_descriptor = fill_tma_descriptor = fill_1d_tma_descriptor


class Driver:
    """Triton's driver of an emulated GPU."""

    binary_ext = "cubin"

    def __init__(self) -> None:
        self.utils = Utils()
        self.launcher_cls = _launcher

    @staticmethod
    def is_active() -> bool:
        """There is a GPU."""
        return True

    def get_current_target(self) -> object:
        """The GPU's architecture."""
        from triton.backends.compiler import GPUTarget

        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    def get_active_torch_device(self) -> torch.device:
        """The current device."""
        return torch.device("cuda", self.get_current_device())

    def get_current_device(self) -> int:
        """Its number."""
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        """Make another one current."""
        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        """The handle of the current stream."""
        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """The compute capability."""
        return torch.cuda.get_device_capability(device)

    def get_device_interface(self) -> ModuleType:
        """Where events and streams are."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., object]:
        """What times a kernel."""
        from triton.testing import do_bench

        found: Callable[..., object] = do_bench
        return found

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Memory to clear between two runs; its size does not matter here."""
        return torch.empty(1, dtype=torch.int8, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """The modelled kernel always reads from memory."""

    def map_python_to_cpp_type(self, kind: str) -> str:
        """How the launcher that Triton would compile declares a type."""
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(kind))

    def assemble_tensormap_to_arg(self, tensormaps_info: object, args: Sequence[object]) -> Sequence[object]:
        """Host-side descriptors as they are."""
        return args


def _launcher(source: KernelSource, metadata: CompileSettings) -> Callable[..., object]:
    """What launches a kernel that was compiled beforehand: it is interpreted, with what was compiled in."""
    if not hasattr(source, "constants"):
        raise UnsupportedError(
            "code that was compiled elsewhere (PTX, Triton's IR) cannot run on an emulated GPU, which has no processor "
            "for it: launch a kernel of triton.language"
        )

    def run(x: int, y: int, z: int, stream: int, *rest: object) -> None:
        if stream != torch.cuda.current_stream().cuda_stream:
            raise UnsupportedError(
                "a compiled Triton kernel is launched on the current stream: enter torch.cuda.stream(...) "
                "instead of passing a stream"
            )
        args = list(rest[HANDLES:])
        for place, value in source.constants.items():
            if len(place) == 1:
                args[place[0]] = value
        options = {"num_warps": metadata.num_warps, "num_stages": metadata.num_stages}
        own = {name: value for name, value in options.items() if name not in source.fn.arg_names}
        source.fn[x, y, z](*args, **own)

    return run


def patches(module: ModuleType) -> list[Patch]:
    """`triton.runtime.driver`: the driver that is active, and the default."""
    driver = Driver()
    config: SimpleNamespace = module.driver
    return [Patch(config, "_active", driver), Patch(config, "_default", driver)]


def backend_patches(module: ModuleType) -> list[Patch]:
    """`triton.backends.nvidia.driver`: what makes its driver gets ours, which looks for no libcuda.so.

    Programs ask where that is to see whether there is a driver (Unsloth runs `ldconfig` where there is none).
    """

    def libcuda_dirs() -> list[str]:
        return []

    return [
        Patch(module, "libcuda_dirs", libcuda_dirs),
        Patch(module.CudaDriver, "__new__", staticmethod(lambda cls: Driver())),
        Patch(module.CudaDriver, "is_active", staticmethod(Driver.is_active)),
    ]
