"""Choosing between configurations and timing kernels without running them over and over.

`triton.autotune` runs every configuration some hundred times. Here each is priced by the cost model from a few programs
of its grid, and the fastest is computed once. `triton.testing.do_bench` runs its function twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import emulation
from windtunnel.seam.torch.triton.launches import Priced, priced
from windtunnel.trace.operation import Kind

BENCHMARK = "triton.testing.do_bench: runs that are not computed"


class Config(Protocol):
    """A configuration of a kernel."""

    pre_hook: Callable[..., object] | None
    kwargs: dict[str, object]

    def all_kwargs(self) -> dict[str, object]:
        """What it adds to a launch."""


class Launchable(Protocol):
    """A kernel, or what stands around one."""

    def run(self, *args: object, **kwargs: object) -> object:
        """Launch it."""


class Autotuner(Protocol):
    """`triton.runtime.autotuner.Autotuner`."""

    fn: Launchable
    nargs: dict[str, object]
    pre_hook: Callable[..., object]
    post_hook: Callable[..., object]
    user_defined_pre_hook: bool
    user_defined_post_hook: bool


def autotuner(module: ModuleType) -> list[Patch]:
    """`triton.runtime.autotuner`: how a configuration is timed."""
    stock: Callable[..., object] = module.Autotuner._bench

    def _bench(self: Autotuner, *args: object, config: Config, **meta: object) -> object:
        if emulation() is None:
            return stock(self, *args, config=config, **meta)
        if conflicts := meta.keys() & config.kwargs.keys():
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define auto-tuned "
                "symbols."
            )
        current = {**meta, **config.all_kwargs()}
        named = {**self.nargs, **current}
        if config.pre_hook is not None:
            config.pre_hook(named)
        if self.user_defined_pre_hook:
            self.pre_hook(named)
        with priced():
            try:
                self.fn.run(*args, **current)
            except Priced as price:
                duration_ms = 1e-6 * price.cost.duration_ns
            except (module.OutOfResources, AssertionError):  # which `static_assert` raises in the interpreter
                duration_ms = math.inf
        if self.user_defined_post_hook:
            self.post_hook(named, exception=None)
        return [duration_ms, duration_ms, duration_ms]

    return [Patch(module.Autotuner, "_bench", _bench)]


def testing(module: ModuleType) -> list[Patch]:
    """`triton.testing`: timing a function."""
    stock: Callable[..., object] = module.do_bench
    stock_graph: Callable[..., object] = module.do_bench_cudagraph

    def do_bench(
        fn: Callable[[], object],
        warmup: float = 25,
        rep: float = 100,
        grad_to_none: Sequence[torch.Tensor] | None = None,
        quantiles: Sequence[float] | None = None,
        return_mode: str = "mean",
    ) -> object:
        """The time of a function in ms: one run warms up, one is timed; the others would take what that one took."""
        dispatch = emulation()
        if dispatch is None:
            return stock(fn, warmup, rep, grad_to_none, quantiles, return_mode)
        assert return_mode in ["min", "max", "mean", "median", "all"]
        fn()
        torch.cuda.synchronize()
        for tensor in grad_to_none or ():
            tensor.grad = None
        duration_ms = _timed_ms(fn)
        state = dispatch.state
        host = state.host()
        others_ns = round(1e6 * (warmup + rep))
        host.advance(others_ns)
        state.machine.mark(host, Kind.HOST, BENCHMARK, others_ns, state.site(), others_ns)
        return module._summarize_statistics([duration_ms], quantiles, return_mode)

    def do_bench_cudagraph(
        fn: Callable[[], object],
        rep: float = 20,
        grad_to_none: Sequence[torch.Tensor] | None = None,
        quantiles: Sequence[float] | None = None,
        return_mode: str = "mean",
    ) -> object:
        """The same of a function in a CUDA graph."""
        if emulation() is None:
            return stock_graph(fn, rep, grad_to_none, quantiles, return_mode)
        assert return_mode in ["min", "max", "mean", "median", "all"]
        with torch.cuda.stream(torch.cuda.Stream()):
            fn()
            for tensor in grad_to_none or ():
                tensor.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                fn()
            return module._summarize_statistics([_timed_ms(graph.replay)], quantiles, return_mode)

    return [
        Patch(module, "do_bench", do_bench),
        Patch(module, "do_bench_cudagraph", do_bench_cudagraph),
        _clocks(module),
    ]


def _timed_ms(work: Callable[[], object]) -> float:
    """How long it takes on the current stream, between two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _clocks(module: ModuleType) -> Patch:
    """`triton.testing.nvsmi`: by GPU 0's fastest clocks, Inductor judges what is worth padding."""
    stock: Callable[[Sequence[str]], list[int]] = module.nvsmi

    def nvsmi(attrs: Sequence[str]) -> list[int]:
        dispatch = emulation()
        if dispatch is None or not set(attrs) <= set(CLOCKS):
            return stock(attrs)
        gpu = dispatch.state.device(0).gpu
        return [int(getattr(gpu, CLOCKS[attribute])) for attribute in attrs]

    return Patch(module, "nvsmi", nvsmi)


CLOCKS = {
    "clocks.max.sm": "clock_mhz",
    "clocks.current.sm": "clock_mhz",
    "clocks.max.memory": "memory_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
}
"""Fields of a GPU by nvidia-smi's names of its clocks."""
