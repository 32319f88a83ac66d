"""XLA's own GPU compiler, where it is installed: it compiles for a GPU that it is told of, and needs none.

JAX's plugin for CUDA (`jax-cuda12-plugin`, `jax-cuda12-pjrt`) holds the compiler; a description of the GPU takes the
place of one (`GpuTargetConfigProto` of xla/stream_executor/device_description.proto). Values are never computed by it.
Autotuning is off, since it would run kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, Protocol

from windtunnel.gpus import Gpu
from windtunnel.seam.jax.hlo import program_of_module
from windtunnel.seam.jax.program import JitProgram, collectives_of
from windtunnel.seam.jax.types import HloModule

PLUGIN = "jax-cuda12-plugin"
UNTUNED = [("xla_gpu_autotune_level", 0)]
RUNTIME = "runtime_version { major: 12 minor: 9 patch: 0 }"
CUDNN = "dnn_version_info { major: 9 minor: 7 }"


class MemoryStats(Protocol):
    """`jaxlib._jax.CompiledMemoryStats`; bytes of one device."""

    argument_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int


class GpuExecutable(Protocol):
    """What the compiler gives: a program without a GPU to load it."""

    def get_compiled_memory_stats(self) -> MemoryStats: ...

    def hlo_modules(self) -> Sequence[HloModule]: ...


class GpuProgram(NamedTuple):
    """A program as XLA compiled it for the emulated GPU: one device's kernels, collectives and memory."""

    executable: GpuExecutable
    program: JitProgram
    collectives: list[tuple[str, int]]
    temporary_bytes: int
    alias_bytes: int


class CompileOptions(Protocol):
    """`jaxlib.xla_client.CompileOptions`."""

    env_option_overrides: object

    def SerializeAsString(self) -> bytes: ...  # noqa: N802  # protobuf's own name


class CompileOnlyClient(Protocol):
    """A client that compiles for devices that are not there."""

    def compile(self, computation: object, devices: object, options: object) -> GpuExecutable: ...


def installed() -> str | None:
    """The version of the GPU compiler that is installed, or None; JAX's plugins fit the jaxlib of their own version."""
    try:
        found = version(PLUGIN)
        return found if found == version("jaxlib") else None
    except PackageNotFoundError:
        return None


def target(gpu: Gpu) -> str:
    """A GPU as XLA's compiler is told of one."""
    major, minor = gpu.compute_capability
    fp32 = gpu.peak_flops.get("fp32", 0.0) / (2e6 * gpu.clock_mhz * gpu.sm_count)
    units = 128 if fp32 > 96 else 64
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: {gpu.shared_memory_per_block_bytes}
  shared_memory_per_core: {gpu.shared_memory_per_sm_bytes} threads_per_core_limit: {gpu.max_threads_per_sm}
  core_count: {gpu.sm_count} fpus_per_core: {units} block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: {gpu.memory_bandwidth_bytes_per_s} l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock_mhz / 1000} device_memory_size: {gpu.memory_bytes}
  shared_memory_per_block_optin: {gpu.shared_memory_per_block_optin_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {gpu.registers_per_sm} registers_per_block_limit: 65536
}}
platform_name: "CUDA" {CUDNN} {RUNTIME}
device_description_str: "{gpu.name}"
"""


class GpuCompiler:
    """The compiler for one model of GPU, of which a program may use several."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        from jax._src import xla_bridge  # type: ignore[import-untyped, unused-ignore]
        from jax._src.lib import xla_client  # type: ignore[import-untyped, unused-ignore]

        if not xla_client.pjrt_plugin_loaded("cuda"):
            from jax_plugins import xla_cuda12  # type: ignore[import-not-found, unused-ignore]

            xla_client.load_pjrt_plugin_dynamically("cuda", str(xla_cuda12._get_library_path()))
        if not xla_client.pjrt_plugin_initialized("cuda"):
            xla_client.initialize_pjrt_plugin("cuda")
        topology = xla_bridge.make_pjrt_topology("cuda", "", topology=f"1x1x{count}", target_config=target(gpu))
        self._devices = topology._make_compile_only_devices()
        self._client: CompileOnlyClient = self._devices[0].client
        self._xla = xla_client

    def compile(self, computation: object, count: int, options: CompileOptions) -> GpuProgram:
        """Compile a module for the first `count` devices.

        Raises:
            jax.errors.JaxRuntimeError: the compiler refuses it.
        """
        own = self._xla.CompileOptions.ParseFromString(options.SerializeAsString())
        own.env_option_overrides = UNTUNED
        devices = self._xla.DeviceList(tuple(self._devices[:count]))
        executable = self._client.compile(computation, devices, own)
        texts = [module.to_string() for module in executable.hlo_modules()]
        programs = [program_of_module(text) for text in texts]
        memory = executable.get_compiled_memory_stats()
        return GpuProgram(
            executable,
            JitProgram(
                tuple(work for program in programs for work in program.work),
                True,
                sum(program.unknown_loops for program in programs),
            ),
            [pair for text in texts for pair in collectives_of(text)],
            int(memory.temp_size_in_bytes),
            int(memory.alias_size_in_bytes),
        )
