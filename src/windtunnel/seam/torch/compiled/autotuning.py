"""What Inductor measures while it compiles, answered by the cost model.

Work that Inductor calls to measure it has the time that its operators have on the device. A template of Inductor's own
is never run: it is taken to be as fast as the library's kernel, times `TEMPLATE_TIME`, so that of equal shapes the
library's is chosen unless the program excludes it (`max_autotune_gemm_backends`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.compiled.accounting import Pricing
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.layout import operands_layout
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Signature

TEMPLATE_TIME = 1.05
"""A template's time over cuBLAS's for the same product: assumed (Triton's tutorial 3 shows 0.9 to 1.1)."""
PRODUCTS = {2: "aten::mm", 3: "aten::bmm"}


def pricing() -> Pricing:
    """The mode under which Inductor is working."""
    return next(mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Pricing))


def benchmarking_patches(module: ModuleType) -> list[Patch]:
    """`torch._inductor.runtime.benchmarking`: a measurement is the time on the device that a function's work has."""

    def benchmark_gpu(self: object, _callable: Callable[[], object], *args: object, **kwargs: object) -> float:
        mode = pricing()
        before = mode.spent_ns
        _callable()
        return (mode.spent_ns - before) / 1e6

    owners = [owner for owner in vars(module).values() if isinstance(owner, type) and "benchmark_gpu" in vars(owner)]
    return [Patch(owner, "benchmark_gpu", benchmark_gpu) for owner in owners]


def padding_patches(dispatch: Dispatch, module: ModuleType) -> list[Patch]:
    """`torch._inductor.fx_passes.pad_mm`, which turns modes off to measure on the device."""
    mode = Pricing(dispatch)

    @contextmanager
    def no_dispatch() -> Iterator[None]:
        with _disable_current_modes(), mode:
            yield

    verdicts = Verdicts()
    return [Patch(module, "no_dispatch", no_dispatch), Patch(module, "get_pad_cache", lambda: verdicts)]


class Verdicts:
    """What was found worth padding, for one emulation; PyTorch keeps it in a file, for all later processes.

    Times without padding are asked of the cost model each time: where PyTorch knows one already, it goes on with a fake
    tensor in the place of the bias, and stops.
    """

    def __init__(self) -> None:
        self.known: dict[str, object] = {}

    def lookup(self, key: str) -> object:
        """What is known of a product's shapes, None where nothing is."""
        return None if key.startswith("base mm time") else self.known.get(key)

    def set_value(self, key: str, *, value: object) -> None:
        """Remember it."""
        self.known[key] = value


def selection_patches(dispatch: Dispatch, module: ModuleType) -> list[Patch]:
    """`torch._inductor.select_algorithm`: templates are neither compiled nor run to be chosen from."""
    machine = dispatch.machine

    def benchmark(self: object, *args: torch.Tensor, out: torch.Tensor) -> float:
        operands = args[-2:]
        device = machine.devices[max(device_of(out), 0)].cost
        tensors = (*operands, out)
        described = Signature(
            PRODUCTS.get(operands[0].dim() if operands else 0, "aten::convolution"),
            tuple(tuple(map(int, tensor.shape)) for tensor in tensors),
            tuple(str(tensor.dtype)[6:] for tensor in tensors),
            len(operands),
            0,
            sum(tensor.numel() * tensor.element_size() for tensor in operands),
            out.numel() * out.element_size(),
            tuple((name, 1) for name in operands_layout(0, operands)),
        )
        return TEMPLATE_TIME * device.kernel(described).duration_ns / 1e6

    def precompile(self: object) -> None:
        return None

    owner = module.TritonTemplateCaller
    return [Patch(owner, "benchmark", benchmark), Patch(owner, "precompile", precompile)]
