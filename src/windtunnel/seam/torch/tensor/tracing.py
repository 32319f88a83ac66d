"""`torch.jit.trace`: while it records, sizes read in Python are tensors of the graph; ours shall be numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.jit._trace as trace
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.jit_trace import TRACER, is_on, paused
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types
from windtunnel.seam.torch.plans.plan import numbers_as_tensors
from windtunnel.seam.torch.state.state import State

C = torch._C
convolution: OpOverload = torch.ops.aten.convolution.default
recorded: OpOverload = torch.ops.aten._convolution.default


def patches(state: State) -> list[Patch]:
    """The functions that trace; they call one another, and ONNX's exporter calls the last."""
    return [
        Patch(owner, name, _tracing(getattr(trace, name)))
        for owner, name in (
            (torch.jit, "trace"),
            (trace, "trace"),
            (torch.jit, "trace_module"),
            (trace, "trace_module"),
            (torch.jit, "_get_trace_graph"),
            (trace, "_get_trace_graph"),
        )
    ]


class Paused(TorchDispatchMode):
    """Above the emulation's own mode while something is traced: an operator that comes here is in the graph already.

    Only a convolution is not: PyTorch records the `_convolution` that it makes of it further down, and so it is here.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if func is convolution and is_on():
            include, exclude = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
            pause = Paused()  # type: ignore[no-untyped-call]
            with pause, C._ForceDispatchKeyGuard(include.add(TRACER), exclude.remove(TRACER)):
                return recorded(*args, *_switches())
        if func is recorded:
            func, args = convolution, args[: len(convolution._schema.arguments)]
        with paused():
            return func(*numbers_as_tensors(func, args), **(kwargs or {}))


def _switches() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32


def _tracing(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def traced(*args: object, **kwargs: object) -> object:
        with Paused():  # type: ignore[no-untyped-call]
            return stock(*args, **kwargs)

    return traced
