"""What Triton's own compiler says of a kernel: its registers, its shared memory, its code.

Nothing here runs compiled code. A launch gives a program the compiled kernel, as Triton does; it is compiled when the
program first looks at it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

import torch

from windtunnel.seam.torch.plans.arguments import Arguments


class CompiledTritonKernel(Protocol):
    """`triton.compiler.CompiledKernel`."""

    metadata: Metadata

    def _init_handles(self) -> None:
        """Load it onto the device.

        Raises:
            OutOfResources: it needs more shared memory than a block can have.
        """


class Metadata(Protocol):
    """What the compiler found out."""

    shared: int


class Compilable(Protocol):
    """A `triton.runtime.jit.JITFunction`."""

    def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> CompiledTritonKernel:
        """Launch it, or compile it."""


class Target(Protocol):
    """`triton.backends.compiler.GPUTarget`."""

    arch: int


class Backend(Protocol):
    """Triton's compiler for NVIDIA's GPUs."""

    target: Target


class IrModule(Protocol):
    """Triton's intermediate representation of a kernel."""

    context: object

    def get_int_attr(self, name: str) -> int:
        """An attribute."""


class LaunchedKernel:
    """The compiled kernel that a launch returns; compiled as soon as somebody asks for one of its attributes."""

    def __init__(self, kernel: Compilable, grid: object, args: Arguments, kwargs: Mapping[str, object]) -> None:
        self._compile: Callable[[], CompiledTritonKernel] = lambda: compiled(kernel, grid, args, kwargs)
        self._made: CompiledTritonKernel | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._compiled(), name)

    def __getitem__(self, grid: object) -> object:
        return self._compiled()[grid]  # type: ignore[index]

    def _compiled(self) -> CompiledTritonKernel:
        if self._made is None:
            self._made = self._compile()
            self._made._init_handles()
        return self._made


def compiled(kernel: Compilable, grid: object, args: Arguments, kwargs: Mapping[str, object]) -> CompiledTritonKernel:
    """A kernel as Triton compiles it for the current device and arguments of these types."""
    return kernel.run(*args, grid=grid, warmup=True, **kwargs)


HOOK = "add_stages_inspection_hook"
"""Triton's option that names who may change the stages of a compilation."""


class _AllocatedError(Exception):
    """Ends a compilation once shared memory is allocated."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes


def shared_memory(kernel: Compilable, grid: object, args: Arguments, kwargs: Mapping[str, object]) -> int:
    """The bytes of shared memory that Triton's compiler gives a kernel; it stops there, since ptxas takes longest.

    The passes are the first ones of `CUDABackend.make_llir` (triton/backends/nvidia/compiler.py).
    """
    from triton import knobs
    from triton._C.libtriton import ir, nvidia, passes
    from triton.backends.nvidia.compiler import get_ptx_version_from_options

    def stages(
        backend: Backend | None = None,
        found: dict[str, object] | None = None,
        options: object = None,
        language: object = None,
        capability: object = None,
    ) -> tuple[str, str] | None:
        if backend is None or found is None:
            return "windtunnel", "0"  # which distinguishes this pipeline in Triton's caches

        def allocate(module: IrModule, _: object) -> NoReturn:
            manager = ir.pass_manager(module.context)
            passes.ttgpuir.add_combine_tensor_select_and_if(manager)
            passes.ttgpuir.add_allocate_warp_groups(manager)
            passes.convert.add_scf_to_cf(manager)
            passes.gluon.add_inliner(manager)
            version = get_ptx_version_from_options(options, backend.target.arch)
            nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, capability, version)
            manager.run(module, "shared_memory")
            raise _AllocatedError(int(module.get_int_attr("ttg.shared")))

        found["llir"] = allocate
        return None

    chosen = vars(knobs.runtime)
    before = chosen.get(HOOK)
    chosen[HOOK] = stages
    try:
        return compiled(kernel, grid, args, kwargs).metadata.shared  # of an earlier compilation
    except _AllocatedError as found:
        return found.size_bytes
    finally:
        chosen[HOOK] = before


def types_of(args: Sequence[object]) -> tuple[object, ...]:
    """Arguments with stand-ins in the place of tensors, so that they keep no memory alive."""
    return tuple(map(_type_of, args))


def _type_of(value: object) -> object:
    from triton.runtime.jit import MockTensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    if isinstance(value, torch.Tensor):
        return MockTensor(value.dtype, list(value.shape))
    if isinstance(value, TensorDescriptor):
        return dataclasses.replace(value, base=_type_of(value.base))
    if isinstance(value, tuple):
        made = types_of(value)
        return value._make(made) if hasattr(value, "_make") else made
    return value
