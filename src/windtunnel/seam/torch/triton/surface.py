"""The names of Triton's that an emulation replaces, by module."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.tags import device_of
from windtunnel.seam.torch.triton import driver, tuning
from windtunnel.seam.torch.triton.base import check_version
from windtunnel.seam.torch.triton.launches import TunedKernel, launch, tensors_of


def _compiled(module: ModuleType) -> list[Patch]:
    """Kernels that were decorated as they are for a GPU."""
    stock: Callable[..., object] = module.JITFunction.run

    def run(self: TunedKernel, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        made = None if warmup else launch(self, grid, args, kwargs)
        return made or stock(self, *args, grid=grid, warmup=warmup, **kwargs)

    return [Patch(module.JITFunction, "run", run)]


def _interpreted(module: ModuleType) -> list[Patch]:
    """Kernels that were decorated with TRITON_INTERPRET=1: on emulated tensors they are a GPU's kernels as well."""
    check_version()
    stock: Callable[..., object] = module.InterpretedFunction.run
    kernels: dict[int, tuple[object, TunedKernel]] = {}

    def run(self: object, *args: object, grid: object, warmup: bool, **kwargs: object) -> object:
        if warmup:
            return None
        known = kernels.get(id(self))
        if known is None:
            from triton.runtime.jit import JITFunction

            options = {name: value for name, value in self.kwargs.items() if value is not None}  # type: ignore[attr-defined]
            known = kernels[id(self)] = self, JITFunction(self.fn, **options)  # type: ignore[attr-defined]
        known[1].pre_run_hooks = self.pre_run_hooks  # type: ignore[attr-defined]
        made = launch(known[1], grid, args, kwargs) if _on_devices(args, kwargs) else None
        return made or stock(self, *args, grid=grid, warmup=warmup, **kwargs)

    return [Patch(module.InterpretedFunction, "run", run)]


def _on_devices(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a kernel's tensors lie on devices; those on the host are computed there, as Triton's variable asks."""
    tensors = [tensor for value in (*args, *kwargs.values()) for _, tensor in tensors_of("", value)]
    return any(device_of(tensor) >= 0 for tensor in tensors)


PATCHES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "triton.runtime.jit": _compiled,
    "triton.runtime.interpreter": _interpreted,
    "triton.runtime.autotuner": tuning.autotuner,
    "triton.runtime.driver": driver.patches,
    "triton.backends.nvidia.driver": driver.backend_patches,
    "triton.testing": tuning.testing,
}
"""What is replaced in Triton's modules, by their names."""
