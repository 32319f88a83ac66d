"""The stacks that PyTorch's memory snapshots show: all frames of Python and TorchScript, but for our own.

PyTorch's own gatherer takes them (torch/csrc/profiler/combined_traceback.cpp), so names, lines and the place of
TorchScript's frames are its own. Of C++ frames, which are not those of CUDA here, one is known: the operator's.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TypedDict

import torch

from windtunnel.machine.memory.blocks import Block
from windtunnel.seam.sites import OURS, PROGRAMS


class Frame(TypedDict):
    """One line of a stack, as a snapshot has it."""

    filename: str
    line: int
    name: str


Frames = list[Frame]

STATE, ALLOC, ALL = 1, 2, 3
LEVELS = {"": 0, "state": STATE, "alloc": ALLOC, "all": ALL}
"""c10::cuda::CUDACachingAllocator::RecordContext: at which level of `context` what is gathered."""

ALLOCATIONS = ("alloc", "segment_alloc", "segment_map", "oom")
FREES = ("free_requested", "free_completed")
SEGMENT_FREES = ("segment_free", "segment_unmap")

OPERATOR_DEPTH = 16

gather_traceback = torch._C._profiler.gather_traceback
symbolize_tracebacks = torch._C._profiler.symbolize_tracebacks


class Stack:
    """Where something was asked for; its frames are looked up when they are shown."""

    __slots__ = ("_gathered", "_operator")

    def __init__(self, operators: frozenset[CodeType]) -> None:
        self._gathered = gather_traceback(python=True, script=True, cpp=False)
        self._operator = running_operator(operators) if operators else ""

    def frames(self) -> Frames:
        """The frames as a snapshot has them, the innermost first."""
        found: Frames = symbolize_tracebacks([self._gathered])[0]  # type: ignore[assignment]  # a line is a number
        shown = [frame for frame in found if not _is_ours(frame["filename"])]
        if self._operator:
            return [{"filename": "??", "line": 0, "name": f"at::_ops::{self._operator}::call"}, *shown]
        return shown


class Stacks:
    """Which stack goes with which row of the allocators' history.

    Source: maybeGatherContext and record_trace of c10/cuda/CUDACachingAllocator.cpp. What is given back shows where
    it was asked for, unless stacks are gathered of all.
    """

    def __init__(self) -> None:
        self.operators = False  # whether the operator is shown, where C++ frames were asked for
        self.dispatch: frozenset[CodeType] = (
            frozenset()
        )  # code whose frames know the operator that runs, as `call` or as `func`
        self.level = 0
        self.factories: set[str] = set()  # operators that make tensors of none
        self._names: dict[int, str] = {}
        self._contexts: dict[int, Stack] = {}
        self._events: dict[int, Stack] = {}

    def gather(self, level: int) -> Stack | None:
        """The stack of this moment, where stacks are gathered of what has this level."""
        if self.level < level:
            return None
        return Stack(self.dispatch if self.operators else frozenset())

    def operator(self) -> str:
        """The operator that runs, as "aten::mm"; empty where none does."""
        func = running_function(self.dispatch, 2)
        if func is None:
            return ""
        name = self._names.get(id(func))
        if name is None:
            name = self._names[id(func)] = str(func._schema.name)
            if not any("Tensor" in str(one.type) for one in func._schema.arguments):
                self.factories.add(name)
        return name

    def note(self, row: int, action: str, block: Block | None, given: Stack | None) -> None:
        """Keep what goes with a row; `given` is where a block's storage died."""
        stack: Stack | None = None
        if action in ALLOCATIONS:
            stack = self.gather(STATE)
            if stack is not None:
                self._contexts[row] = stack
        elif block is not None and action in FREES:
            stack = given or self._context(block.context)
        elif block is not None and action in SEGMENT_FREES:
            stack = self.gather(ALL) or self._context(block.segment.context)
        if stack is not None and self.level >= ALLOC:
            self._events[row] = stack

    def of_context(self, context: object) -> Frames:
        """The frames of a block's or a segment's context, which is the row of its allocation."""
        stack = self._context(context)
        return [] if stack is None else stack.frames()

    def _context(self, context: object) -> Stack | None:
        return self._contexts.get(context) if isinstance(context, int) else None

    def of_event(self, row: int) -> Frames:
        """The frames that the event of a row shows."""
        stack = self._events.get(row)
        return [] if stack is None else stack.frames()


def running_operator(dispatch: frozenset[CodeType]) -> str:
    """The operator whose dispatch is on the stack, under its name in C++ (`empty_memory_format`); "" for none."""
    func = running_function(dispatch, 3)
    if func is None:
        return ""
    schema = func._schema
    return str(schema.name.partition("::")[2]) + (f"_{schema.overload_name}" if schema.overload_name else "")


def running_function(dispatch: frozenset[CodeType], depth: int) -> torch._ops.OpOverload | None:
    """The operator whose dispatch is on the stack, `depth` frames up or more."""
    frame: FrameType | None = sys._getframe(depth + 1)
    for _ in range(OPERATOR_DEPTH):
        if frame is None:
            break
        if frame.f_code in dispatch:
            known = frame.f_locals
            found = known["call"].plan.func if "call" in known else known["func"]
            return found if hasattr(found, "_schema") else None
        frame = frame.f_back
    return None


def _is_ours(file: str) -> bool:
    return file.startswith(OURS) and not file.startswith(PROGRAMS)
