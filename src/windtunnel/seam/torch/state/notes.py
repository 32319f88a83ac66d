"""Facts about a program that only the seam can see, noted for the checks: how it chooses devices, makes tensors, steps.

Each is looked for where it costs nothing: at an optimizer's step, at a copy to a device, where a device is named.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Kind, Note
from windtunnel.trace.rows import Row
from windtunnel.trace.trace import LANE

NUMBERED = re.compile(r"cuda:[1-9]|\.cuda\([1-9]|\.to\([1-9]|device=[1-9]")
"""A device other than the first, written out in a line of source."""

FUSED = ("Adam", "AdamW", "SGD")
"""Optimizers of torch.optim that have a fused implementation on CUDA."""


class OptimizerRows(threading.local):
    """What a thread's optimizers have done: how many rows there were before and after the last step of one.

    A step of the program ends with that of its first optimizer. Those of others belong to it, until one of them takes
    two without the first: a warm-up is over, or a critic takes several steps for each one of the generator.
    """

    before_step = 0
    after_step = 0

    def __init__(self) -> None:
        self._first: weakref.ref[torch.optim.Optimizer] | None = None
        self._others: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def ends_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step of the program ends with this optimizer's."""
        first = None if self._first is None else self._first()
        if first not in (None, optimizer) and optimizer not in self._others:
            self._others.add(optimizer)
            return False
        self._first = weakref.ref(optimizer)
        self._others.clear()
        return True


class Notes:
    """What was noticed of one program so far."""

    def __init__(self, core: Core, stop_after: int | None) -> None:
        self.core = core
        self.asked_available = False
        self.asked_count = False
        self._place = OptimizerRows()
        self.steps = 0
        self.captured_steps = 0
        self.stop_after = stop_after
        self.at_end: list[Callable[[], None]] = []  # to be told before the end: they note what only that shows
        self.stepping: list[Callable[[torch.optim.Optimizer], None]] = []  # to be told before each step
        self._hooks: list[RemovableHandle] = []
        self._moved_by_fused: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()

    def begin(self) -> None:
        """Listen to the steps of optimizers."""
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def end(self) -> None:
        """Stop listening."""
        while self._hooks:
            self._hooks.pop().remove()

    def note(self, code: str, site: int, **detail: str | int) -> None:
        """Record a fact at a line of the program."""
        machine = self.core.machine
        note = Note(code, machine.trace.sites[site], tuple(detail.items()))
        machine.note(self.core.local.host, note, site, again=code == "unfused-optimizer")

    # ------------------------------------------------------------------ optimizers

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for tell in self.stepping:
            tell(optimizer)
        machine = self.core.machine
        self._place.before_step = len(machine.trace.rows)
        if machine.parameter_ns:
            self.core.local.host.now_ns += round(machine.parameter_ns * _handled(optimizer))
        if self.core.work is not None:
            self.core.work.steps_now(True)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        core = self.core
        if core.work is not None:
            core.work.steps_now(False)
        machine = core.machine
        if not self._rows_since(self._place.after_step):
            return  # an optimizer made of others, which have stepped
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        device = max(map(device_of, parameters), default=-1)
        if device < 0:
            return
        site = core.site()
        first = len(machine.trace.rows)
        if core.local.streams[device].capture is not None:
            self.captured_steps += 1
        elif self._place.ends_step(optimizer):
            self.stepped(site)
        foreach = any(_multi_tensor(group) for group in optimizer.param_groups)
        fused = any(group.get("fused") for group in optimizer.param_groups)
        fusible = type(optimizer).__name__ in FUSED and all("fused" in group for group in optimizer.param_groups)
        kernels = self._rows_since(self._place.before_step) - self._rows_since(first)  # without the step's mark
        optional = any("foreach" in group for group in optimizer.param_groups)  # a library's own may be fused already
        if (not foreach and (optional or kernels > len(parameters))) or (fusible and not fused):
            detail: dict[str, int] = {"foreach": 1} if foreach else {}
            if fusible:
                detail["fused_bytes"] = self._fused_bytes(optimizer, parameters)
            self.note("unfused-optimizer", site, optimizer=type(optimizer).__name__,
                      parameters=len(parameters), kernels=kernels, **detail)  # fmt: skip
        self._place.after_step = len(machine.trace.rows)

    def _rows_since(self, first: int) -> int:
        """How many rows this thread has written since there were `first` of all threads."""
        if self.core.machine.threads == 1:
            return len(self.core.machine.trace.rows) - first
        return len(self.own_rows(first))

    def own_rows(self, first: int) -> list[Row]:
        """The rows that this thread has written since there were `first` of all threads, but for threads it joined."""
        trace, own = self.core.machine.trace, self.core.local.host.index
        rows = (row for row in trace.rows.since(first) if trace.lanes[row[LANE]].thread == own)
        return [row for row in rows if row[0] not in (Kind.FORK, Kind.JOIN)]

    def _fused_bytes(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> int:
        """What a fused step reads and writes: parameters, gradients, and the states of their size."""
        known = self._moved_by_fused.get(optimizer)
        if known is None:
            first = next((p for p in parameters if p in optimizer.state), None)
            of_its_size = 0
            if first is not None:
                state = optimizer.state[first].values()
                of_its_size = sum(isinstance(one, torch.Tensor) and one.shape == first.shape for one in state)
            own = [getattr(p, "_local_tensor", p) for p in parameters]  # of a DTensor, this rank's part
            size = sum(p.numel() * p.element_size() for p in own)
            known = self._moved_by_fused[optimizer] = 2 * (2 + of_its_size) * size
        return known

    def stepped(self, site: int) -> None:
        """An optimizer's step was taken: by a call, or by the replay of a graph that holds one."""
        self.steps += 1
        self.core.machine.mark(self.core.host(), Kind.STEP, "Optimizer.step", self.steps, site)
        if self.core.work is not None:
            self.core.work.stepped()
        if self.steps == self.stop_after:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(0)  # at once: what would come now, a checkpoint say, is of a run that was cut short

    # ------------------------------------------------------------------ devices by name

    def device_named(self, device: object) -> None:
        """A device was named by a string or a number: was it written out, and was it asked for before?"""
        number = str(device).rpartition(":")[2]
        index = int(number) if number.isdecimal() else 0
        if index < 1:
            return
        frame = self.core.sites.frame(3)
        if frame is None or not NUMBERED.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
            return
        site = self.core.sites.of(frame)
        code = "availability-without-count" if self.asked_available and not self.asked_count else "hard-coded-device"
        self.note(code, site, name=f"cuda:{index}", device=index)

    # ------------------------------------------------------------------ tensors made in forward

    def copied_to_device(self, source: torch.Tensor, size: int, frame: FrameType | None) -> None:
        """A tensor went to a device: was it made on the CPU inside a `forward` whose inputs are on one?

        `frame` is the program's that asked for the copy.
        """
        if frame is None or frame.f_code.co_name != "forward":
            return
        arguments = _arguments(frame)
        if any(a is source for a in arguments) or not any(device_of(a) >= 0 for a in arguments):
            return
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and any(t is source for t in (*module.parameters(), *module.buffers())):
            return
        self.note("created-on-cpu", self.core.sites.of(frame), size_bytes=size)


def _multi_tensor(group: dict[str, object]) -> bool:
    """Whether an optimizer's group takes the multi-tensor or fused form: the default on CUDA where there is one."""
    if group.get("fused"):
        return True
    return "foreach" in group and group["foreach"] is not False


def _handled(optimizer: torch.optim.Optimizer) -> float:
    """How many tensors PyTorch's Python handles one by one for a multi-tensor step: parameters and their state.

    A fused step looks at its state in C++, at a third of the cost.
    """
    found = 0.0
    for group in optimizer.param_groups:
        if _multi_tensor(group):
            share = 1 / 3 if group.get("fused") else 1.0
            trained = [p for p in group["params"] if p.grad is not None and device_of(p) >= 0]
            found += sum(1 + share * len(optimizer.state.get(p, ())) for p in trained)
    return found


def _arguments(frame: FrameType) -> list[torch.Tensor]:
    count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    names = frame.f_code.co_varnames[:count]
    return [v for v in (frame.f_locals.get(name) for name in names) if isinstance(v, torch.Tensor)]
