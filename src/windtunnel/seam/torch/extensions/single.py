"""Kernels that Python compiles and launches itself: `torch.cuda._compile_kernel` and `torch.cuda.jiterator`."""

from __future__ import annotations

import linecache
import struct
from collections.abc import Mapping, Sequence

import torch

from windtunnel import ptx
from windtunnel.compiler import clang
from windtunnel.compiler.clang import CompileError
from windtunnel.compiler.kernels import compile_text, in_program
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime import errors, limits
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.modules import Binary, KernelFunction
from windtunnel.seam.cuda_runtime.names import demangled
from windtunnel.seam.foreign_kernels import INSTEAD, WHY
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.extensions.libraries import process_of
from windtunnel.seam.torch.plans.messages import cuda_error, device_name
from windtunnel.seam.torch.state.state import State, StreamObject, stream_of
from windtunnel.seam.torch.tags import device_of, tag_of

Tensor = torch.Tensor
MOST_UNCONFIGURED = 48 * 1024
TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16",
    torch.int8: "signed char", torch.uint8: "unsigned char", torch.int16: "short", torch.int32: "int",
    torch.int64: "long long", torch.bool: "bool",
}  # fmt: skip
OF_THE_HOST = (
    't == DeviceType::CUDA INTERNAL ASSERT FAILED at "c10/cuda/impl/CUDAGuardImpl.h", please report a bug to PyTorch. '
    "jiterator's tensors must live on a GPU."
)
"""What PyTorch says of tensors of the host, without the line and with a reason (pytorch/pytorch#94443)."""
COMPUTED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Types whose elements jiterator computes in another (at::opmath_type)."""


def compiled(state: State, source: str, name: str, options: Sequence[str] = ()) -> KernelFunction:
    """A kernel of a source.

    Raises:
        UnsupportedError: the extra is not installed.
        RuntimeError: the source does not compile, or has no such kernel.
    """
    if not clang.available():
        raise UnsupportedError(f"{name!r} is compiled as CUDA C++, and {WHY}: {clang.MISSING}, or {INSTEAD}")
    frame = state.sites.frame(2)
    if frame is not None:
        file = frame.f_code.co_filename
        source = in_program(source, file, "".join(linecache.getlines(file)))
    gpu = state.machine.devices[state.local.device].gpu
    try:
        text = compile_text(source, gpu.compute_capability, options, [name])
    except CompileError as error:
        raise RuntimeError(f"Kernel compilation failed:\n{error}") from None
    binary = Binary.of(text, f"the source of {name!r}")
    wanted = name.replace(" ", "")
    for known in binary.module.kernels:
        if known == name or demangled(known).replace(" ", "") == wanted:
            return KernelFunction(binary, known)
    raise RuntimeError(f"CUDA error: named symbol not found: the source has no __global__ function {name!r}")


class CompiledKernel:
    """What `torch.cuda._compile_kernel` returns."""

    def __init__(self, state: State, function: KernelFunction) -> None:
        self._state = state
        self._function = function
        self._max_shared_mem_bytes = 0

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: Sequence[object] | None = None,
        shared_mem: int = 0,
        stream: StreamObject | None = None,
    ) -> None:
        """Launch it; a tensor stands for the pointer to its data."""
        state = self._state
        packed = [self._packed(value) for value in args or ()]
        if shared_mem >= MOST_UNCONFIGURED and shared_mem > self._max_shared_mem_bytes:
            limit = self._max_shared_mem_bytes
            said = "not configured" if not limit else f"only {limit} bytes configured"
            raise RuntimeError(
                f"Kernel requires {shared_mem} bytes of shared memory (>= 48KB), but {said}. Call "
                "kernel.set_shared_memory_config(shared_mem) after compilation and before launching the kernel."
            )
        found = stream_of(state, torch.cuda.current_stream() if stream is None else stream)
        shape = LaunchShape(_three(grid), _three(block), shared_mem)
        kernel = self._function.kernel
        gpu = state.device(found.device).gpu
        refused = limits.refusal(shape, gpu, kernel.max_threads, kernel.shared_bytes, self._max_shared_mem_bytes)
        if refused:
            error = errors.table()[refused]
            raise cuda_error(error.text, error.name, blocking=state.machine.blocking)
        process_of(state).launcher.launch(self._function, shape, laid_out(kernel, packed), found)

    def _packed(self, value: object) -> bytes:
        if isinstance(value, Tensor):
            if device_of(value) < 0 and not tag_of(value).pinned:
                raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
            return struct.pack("<Q", process_of(self._state).addresses.of(value))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if isinstance(value, bool):
                return struct.pack("<i", value)
            raise TypeError(f"Unsupported argument type: {type(value)}")
        return struct.pack("<i", value) if isinstance(value, int) else struct.pack("<d", value)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Allow it more shared memory than 48 KiB."""
        limit = self._state.device(self._state.local.device).gpu.shared_memory_per_block_optin_bytes
        if shared_mem_bytes > limit:
            raise RuntimeError(
                f"Requested shared memory ({shared_mem_bytes} bytes) exceeds device limit ({limit} bytes). Consider "
                "reducing block size or shared memory usage."
            )
        self._max_shared_mem_bytes = shared_mem_bytes


def laid_out(kernel: ptx.Kernel, values: Sequence[bytes]) -> bytes:
    """A kernel's parameters in their places; each takes what it needs of a value, as the driver reads it."""
    if len(values) != len(kernel.parameters):
        raise RuntimeError(f"the kernel takes {len(kernel.parameters)} arguments, and got {len(values)}")
    made = bytearray()
    for parameter, value in zip(kernel.parameters, values, strict=True):
        made += b"\0" * (parameter.offset - len(made)) + value[: parameter.size].ljust(parameter.size, b"\0")
    return bytes(made)


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    return x, y, z


# ---------------------------------------------------------------------- jiterator

JITERATOR = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#pragma clang force_cuda_host_device begin
{code}
#pragma clang force_cuda_host_device end
extern "C" __global__ void {name}_kernel({parameters}) {{
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  {body}
}}
"""


def elementwise(
    state: State, code: str, name: str, by_reference: bool, outputs: int, tensors: Sequence[Tensor],
    settings: Mapping[str, object],
) -> object:  # fmt: skip
    """What jiterator computes of a function of one element, in a kernel of windtunnel's own.

    Raises:
        RuntimeError: not all tensors are on one GPU; in PyTorch's words (TensorIterator.cpp, c10's CUDAGuardImpl.h).
    """
    places = [max(device_of(tensor), -1) for tensor in tensors]
    other = next((place for place in places if place != places[0]), places[0])
    if other != places[0]:
        names = " and ".join(device_name(place) for place in (places[0], other))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {names}!")
    if places[0] < 0:
        raise RuntimeError(OF_THE_HOST)
    common = torch.result_type(*tensors) if len(tensors) == 2 else tensors[0].dtype
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    if common not in TYPES:
        raise UnsupportedError(f"torch.cuda.jiterator computes {name!r} of {common}, which is not emulated: {INSTEAD}")
    given = [tensor.to(common).contiguous() for tensor in torch.broadcast_tensors(*tensors)]
    results = [torch.empty_like(given[0]) for _ in range(outputs)]
    kind, computed = TYPES[common], TYPES[COMPUTED.get(common, common)]
    inputs = [f"({computed})x{at}[i]" for at in range(len(given))]
    extra = [f"({computed}){_literal(value)}" for value in settings.values()]
    if by_reference:
        held = "".join(f"{computed} r{at}; " for at in range(outputs))
        call = f"{name}<{computed}>({', '.join([*inputs, *extra, *(f'r{at}' for at in range(outputs))])}); "
        body = held + call + " ".join(f"y{at}[i] = ({kind})r{at};" for at in range(outputs))
    else:
        body = f"y0[i] = ({kind}){name}<{computed}>({', '.join([*inputs, *extra])});"
    parameters = [f"const {kind} *x{at}" for at in range(len(given))]
    parameters += [f"{kind} *y{at}" for at in range(outputs)]
    source = JITERATOR.format(code=code, name=name, parameters=", ".join([*parameters, "long long n"]), body=body)
    function = compiled(state, source, f"{name}_kernel")
    size = given[0].numel()
    if size:
        addresses = process_of(state).addresses
        values = [struct.pack("<Q", addresses.of(tensor)) for tensor in (*given, *results)] + [struct.pack("<q", size)]
        shape = LaunchShape((-(-size // 128), 1, 1), (128, 1, 1), 0)
        found = stream_of(state, torch.cuda.current_stream())
        process_of(state).launcher.launch(function, shape, laid_out(function.kernel, values), found)
    return results[0] if outputs == 1 else tuple(results)


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def patches(state: State) -> list[Patch]:
    """`torch.cuda._compile_kernel` and what jiterator launches."""

    def compile_kernel(
        kernel_source: str, kernel_name: str, compute_capability: str | None = None,
        cuda_include_dirs: Sequence[str] | None = None, nvcc_options: Sequence[str] | None = None,
    ) -> CompiledKernel:  # fmt: skip
        torch.cuda._lazy_init()
        options = (*(f"-I{folder}" for folder in cuda_include_dirs or ()), *(nvcc_options or ()))
        return CompiledKernel(state, compiled(state, kernel_source, kernel_name, options))

    def jiterator(
        code: str,
        name: str,
        by_reference: bool,
        outputs: int,
        tensors: Sequence[Tensor],
        settings: Mapping[str, object],
    ) -> object:
        return elementwise(state, code, name, by_reference, outputs, tensors, settings)

    found = [Patch(torch._C, "_cuda_jiterator_compile_and_launch_kernel", jiterator)]
    if hasattr(torch.cuda, "_compile_kernel"):
        found.append(Patch(torch.cuda, "_compile_kernel", compile_kernel))
    return found
