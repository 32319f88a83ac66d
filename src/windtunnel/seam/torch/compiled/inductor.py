"""Inductor with an emulated device below it: what it is told of Triton and of CUDA, and what runs in the end.

Inductor lowers, fuses, schedules, plans memory and writes its wrapper as for the GPU whose properties it reads. Of what
it writes, the wrapper runs and the kernels do not: they are launched on the emulated machine (`kernels`), and the
values come from the graph (`values`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Protocol

import torch
import torch.utils._python_dispatch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import _disable_current_modes as torch_modes_off

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.compiled import kernels, replays, values
from windtunnel.seam.torch.compiled.accounting import Folding, Pricing
from windtunnel.seam.torch.compiled.answers import Answers
from windtunnel.seam.torch.compiled.program import Program
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import disable_torch_function

Compile = Callable[..., "CompiledGraph"]
Modes = Callable[[], AbstractContextManager[object]]
IN_PROCESS = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
    "bundle_triton_into_fx_graph_cache": False,
    "benchmark_epilogue_fusion": False,
}
"""Settings of Inductor: it works in this process alone, keeps nothing for another, and runs no kernel to measure it."""


class CompiledGraph(Protocol):
    """A graph that Inductor has compiled (`CompiledFxGraph`), as far as it is changed here."""

    current_callable: Callable[..., Sequence[object]]


def compile_fx_patches(dispatch: Dispatch, schedule: kernels.Schedule, module: ModuleType) -> list[Patch]:
    """`torch._inductor.compile_fx`: each graph runs as a `Program`."""
    return [
        Patch(module, "fx_codegen_and_compile", _compiling(dispatch, schedule, module.fx_codegen_and_compile)),
        Patch(module, "cudagraphify", replays.cudagraphify(dispatch.state)),
        Patch(module, "compile_fx", _in_process(module, module.compile_fx)),
        *(
            Patch(module, name, _in_process(module, _priced(dispatch, schedule, vars(module)[name])))
            for name in WORK_ON_A_GRAPH
        ),
    ]


WORK_ON_A_GRAPH = ("_compile_fx_inner", "_recursive_joint_graph_passes", "_recursive_pre_grad_passes")
"""What Inductor does with dispatch modes turned off: it makes tensors on the device, and measures."""


def _in_process(module: ModuleType, stock: Callable[..., object]) -> Callable[..., object]:
    """A part of Inductor's work with our settings, whatever libraries have set meanwhile (torchao turns caches on)."""

    @functools.wraps(stock)
    def work(*args: object, **kwargs: object) -> object:
        with module.config.patch(IN_PROCESS), module.functorch_config.patch(enable_autograd_cache=False):
            return stock(*args, **kwargs)

    return work


def _priced(dispatch: Dispatch, schedule: kernels.Schedule, stock: Callable[..., object]) -> Callable[..., object]:
    """A part of Inductor's work, whose measurements are answered by the cost model."""
    mode = Pricing(dispatch)

    @functools.wraps(stock)
    def work(*args: object, **kwargs: object) -> object:
        before, schedule.works = schedule.works, True
        try:
            with mode:
                return stock(*args, **kwargs)
        finally:
            schedule.works = before

    return work


def modes_patches(dispatch: Dispatch, schedule: kernels.Schedule) -> list[Patch]:
    """What Inductor turns modes off with where it computes constants: those on a device are still emulated."""
    folding = _folding(dispatch, lambda: schedule.works)
    return [Patch(torch.utils._python_dispatch, "_disable_current_modes", folding)]


def convert_frame_patches(dispatch: Dispatch, module: ModuleType) -> list[Patch]:
    """`torch._dynamo.convert_frame`: the same for all that happens while Dynamo compiles a frame."""
    return [Patch(module, "_disable_current_modes", _folding(dispatch, lambda: True))]


def proxy_patches(dispatch: Dispatch, module: ModuleType) -> list[Patch]:
    """`torch.fx.experimental.proxy_tensor`, which computes with constants while a graph is traced."""
    stock = module.unset_fake_temporarily
    return [Patch(module, "unset_fake_temporarily", _folding(dispatch, lambda: True, stock))]


def _folding(dispatch: Dispatch, wanted: Callable[[], bool], stock: Modes = torch_modes_off) -> Modes:
    mode = Folding(dispatch)

    @contextmanager
    def modes_off() -> Iterator[object]:
        with stock() as found:
            if not wanted():
                yield found
                return
            with mode:
                yield found

    return modes_off


def _compiling(dispatch: Dispatch, schedule: kernels.Schedule, stock: Compile) -> Compile:
    state = dispatch.state

    @functools.wraps(stock)
    def fx_codegen_and_compile(module: fx.GraphModule, *args: object, **kwargs: object) -> CompiledGraph:
        if not on_device(module):
            return stock(module, *args, **kwargs)
        graph: fx.GraphModule | None = None
        answers = Answers(state)
        eager = fx.GraphModule(module, _copied(module))  # Inductor's passes change the graph that it is given
        refused = ""
        try:
            graph = values.computed_from(dispatch, answers, module)
        except values.UnsupportedGraph as found:
            refused = str(found)
        with kernels.recorded(schedule, answers):
            compiled = stock(module, *args, **kwargs)
        if graph is None:
            state.notes.note("not-modelled", state.site(), what="graph", name=refused)
            compiled.current_callable = _eager(eager)
        else:
            backward = bool(kwargs.get("is_backward"))
            operators = sum(isinstance(node.target, OpOverload | HigherOrderOperator) for node in eager.graph.nodes)
            run = compiled.current_callable
            compiled.current_callable = Program(dispatch, graph, run, answers, backward, operators)
        return compiled

    return fx_codegen_and_compile


def _copied(module: fx.GraphModule) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return graph


def _eager(graph: fx.GraphModule) -> Callable[..., Sequence[object]]:
    """A graph that runs operator by operator, under the emulation as any other program."""

    def run(inputs: list[object]) -> Sequence[object]:
        given = tuple(inputs)
        inputs.clear()
        with torch.no_grad():
            results: Sequence[object] = graph.forward(*given)
        return results

    return run


def on_device(module: fx.GraphModule) -> bool:
    """Whether a graph has a tensor on an emulated device."""
    with disable_torch_function():
        found = (node.meta.get("val") for node in module.graph.nodes)
        return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in found)


def higher_order_patches(dispatch: Dispatch, module: ModuleType) -> list[Patch]:
    """`torch._higher_order_ops.utils`, which makes examples of tensors on the device with modes turned off."""
    mode = Folding(dispatch)
    stock: Callable[[object], object] = module._from_fun

    @functools.wraps(stock)
    def _from_fun(tensor: object) -> object:
        if torch._C._len_torch_dispatch_stack():
            return stock(tensor)
        with mode:
            return stock(tensor)

    return [Patch(module, "_from_fun", _from_fun)]


def async_compile_patches(state: State, schedule: kernels.Schedule, module: ModuleType) -> list[Patch]:
    """`torch._inductor.async_compile`: what the generated code makes of its kernels' sources."""
    owner = module.AsyncCompile
    stock_triton, stock_cpp = owner.triton, owner.cpp_pybinding

    @functools.wraps(stock_triton)
    def triton(self: object, kernel_name: str, source_code: str, *args: object, **kwargs: object) -> object:
        if schedule.kernels is None:
            return stock_triton(self, kernel_name, source_code, *args, **kwargs)
        facts, answers = schedule.kernels.get(kernel_name), schedule.answers
        assert answers is not None
        if facts is None:
            return kernels.Own(state, kernel_name, answers)
        return kernels.InductorKernel(state, kernel_name, facts, answers)

    @functools.wraps(stock_cpp)
    def cpp_pybinding(self: object, argtypes: object, source_code: str) -> object:
        if schedule.kernels is None:
            return stock_cpp(self, argtypes, source_code)
        return kernels.HostKernel(state)

    return [Patch(owner, "triton", triton), Patch(owner, "cpp_pybinding", cpp_pybinding)]


def triton_patches(schedule: kernels.Schedule, module: ModuleType) -> list[Patch]:
    """`torch._inductor.codegen.triton`: what its schedule says of each kernel."""
    owner = module.TritonScheduling
    return [Patch(owner, "define_kernel", kernels.defining(schedule, module.V, owner.define_kernel))]
