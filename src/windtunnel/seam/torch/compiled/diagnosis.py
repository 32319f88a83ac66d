"""What Dynamo and Inductor say of a program while they compile it, noted at the program's line."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType

import torch._guards

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.trace.operation import Site

HINT, EXPLANATION = "Hint: ", "Explanation: "


def graph_breaks(state: State, module: ModuleType) -> list[Patch]:
    """`torch._dynamo.symbolic_convert`: where a graph ends because Dynamo cannot follow the program."""
    owner = module.InstructionTranslatorBase
    stock: Callable[..., None] = owner.log_graph_break

    @functools.wraps(stock)
    def log_graph_break(self: object, code_options: dict[str, object], reason: str, exc: Exception) -> None:
        if not getattr(exc, "logged", False):
            stack: Sequence[traceback.FrameSummary] = (
                getattr(exc, "real_stack", None) or torch._guards.TracingContext.extract_stack()
            )
            if stack:
                place = Site(stack[-1].filename, stack[-1].lineno or 0, stack[-1].name)
            else:
                place = Site(str(code_options["co_filename"]), int(str(code_options["co_firstlineno"])))
            lines = [line.strip() for line in reason.splitlines() if line.strip()]
            explained = next((i for i, line in enumerate(lines) if line.startswith(EXPLANATION)), 0)
            what = lines[max(0, explained - 1)] if lines else reason
            hint = next((line.removeprefix(HINT) for line in lines if line.startswith(HINT)), "")
            state.notes.note("graph-break", state.machine.trace.sites.number(place), reason=what, hint=hint)
        stock(self, code_options, reason, exc)

    return [Patch(owner, "log_graph_break", log_graph_break)]


def recompilations(state: State, module: ModuleType) -> list[Patch]:
    """`torch._dynamo.convert_frame`: which guard of a compiled program failed, so that it is compiled again."""
    stock: Callable[..., list[str]] = module.get_and_maybe_log_recompilation_reasons

    @functools.wraps(stock)
    def reasons_of(entries: object, frame: FrameType, *args: object) -> list[str]:
        reasons = stock(entries, frame, *args)
        code = frame.f_code
        place = state.machine.trace.sites.number(Site(code.co_filename, code.co_firstlineno, code.co_name))
        failed = reasons[0].split(": ", 1)[-1].splitlines()[0] if reasons else "a guard"
        state.notes.note("recompile", place, name=code.co_name, guard=failed)
        return reasons

    return [Patch(module, "get_and_maybe_log_recompilation_reasons", reasons_of)]


def compiled_modules(state: State, module: ModuleType) -> list[Patch]:
    """`torch._dynamo.eval_frame`: from the first `torch.compile` on, the memory history hooks into no module."""
    stock: Callable[..., object] = module._optimize

    @functools.wraps(stock)
    def _optimize(*args: object, **options: object) -> object:
        state.history.compiling()
        return stock(*args, **options)

    return [Patch(module, "_optimize", _optimize)]


def skipped_graphs(state: State, module: ModuleType) -> list[Patch]:
    """`torch._inductor.output_code`, and others that say why a compiled graph is no CUDA graph."""
    stock: Callable[[str], None] = module.log_cudagraph_skip_and_bump_counter

    @functools.wraps(stock)
    def log(msg: str) -> None:
        reason = msg.splitlines()[0].removeprefix("skipping cudagraphs due to ")
        state.notes.note("cudagraphs-skipped", state.site(), reason=reason)
        stock(msg)

    return [Patch(module, "log_cudagraph_skip_and_bump_counter", log)]


def compile_time(state: State, module: ModuleType) -> list[Patch]:
    """`torch._dynamo.callback`, which is called around all that compiles: how long it takes here."""
    owner = module.CompilationCallbackHandler
    begins: list[int] = []

    def beginning(stock: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(stock)
        def run_start_callbacks(self: object, args: object) -> None:
            begins.append(time.perf_counter_ns())
            stock(self, args)

        return run_start_callbacks

    def ending(stock: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(stock)
        def run_end_callbacks(self: object, args: object) -> None:
            stock(self, args)
            facts = state.machine.trace.facts
            if begins:
                facts["compile_ns"] = facts.get("compile_ns", 0) + time.perf_counter_ns() - begins.pop()

        return run_end_callbacks

    return [
        Patch(owner, "run_start_callbacks", beginning(owner.run_start_callbacks)),
        Patch(owner, "run_end_callbacks", ending(owner.run_end_callbacks)),
    ]
