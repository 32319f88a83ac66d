"""Memory for the buffers of generated code: on the emulated device, and without values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.compiled.accounting import Accounting
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import storage_of

EMPTY_NS = 800
"""Host time of one allocation in generated code, which skips the dispatcher (torch/csrc/dynamo/guards.cpp): assumed."""


def _on_device(state: State) -> Callable[..., torch.Tensor]:
    """`empty_strided_cuda` of generated code: memory on the current device, without values."""

    def empty_strided_cuda(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="meta")
        state.place(storage_of(made), state.local.device)
        state.local.host.now_ns += EMPTY_NS
        return made

    return empty_strided_cuda


def patches(state: State) -> list[Patch]:
    """Names that exist from the beginning."""
    guards: ModuleType = torch._C._dynamo.guards
    return [
        Patch(guards, "_empty_strided_cuda", _on_device(state)),
        Patch(guards, "_empty_strided_cpu", _on_host(vars(guards)["_empty_strided_cpu"])),
    ]


def _on_host(stock: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`empty_strided_cpu` of generated code: without values where the code runs for its time and memory alone."""

    def empty_strided_cpu(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(_get_current_dispatch_mode(), Accounting):
            return stock(size, stride, dtype)
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="meta")

    return empty_strided_cpu
