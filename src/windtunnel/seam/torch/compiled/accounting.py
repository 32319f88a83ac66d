"""Operators of a compiled program that Inductor leaves to libraries: their time and memory, without their values.

While Inductor's wrapper runs, its buffers have shapes, strides and memory on the emulated device but no values. What it
calls of PyTorch comes here: results take their shapes from meta kernels, and the work is submitted as that of the same
operator called from a program.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._ops import HigherOrderOperator

from windtunnel.seam.torch.compiled.answers import Answers, about
from windtunnel.seam.torch.compiled.kernels import launched
from windtunnel.seam.torch.compiled.recipes import CallRecording
from windtunnel.seam.torch.dispatch import fake
from windtunnel.seam.torch.dispatch.mode import FAKE, PLAIN, Dispatch, get_mode
from windtunnel.seam.torch.dispatch.moves import transfer
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.convolutions import OPERANDS, laid_out
from windtunnel.seam.torch.plans.signature import signature
from windtunnel.seam.torch.rehearsal.nodata import to_meta
from windtunnel.seam.torch.tags import (
    CPU,
    HOST_TAG,
    NOWHERE,
    TRACED,
    Tag,
    attach,
    device_of,
    disable_torch_function,
    is_physically_meta,
    storage_of,
)

Tensor = torch.Tensor
META = torch.device("meta")
CPU_DEVICE = torch.device("cpu")
DRAWING = {"run_and_save_rng_state": 0, "graphsafe_run_with_rng_state": 0, "run_with_rng_state": 1}
"""Operators around a random one that Inductor leaves to PyTorch, and which argument that is."""


class Accounting(Dispatch):
    """The dispatch mode under which Inductor's wrapper runs, with the plans and prices of the emulation's own."""

    def __init__(self, dispatch: Dispatch, answers: Answers | None = None) -> None:
        super().__init__(dispatch.state, {}, dispatch.deviations)
        self.answers = answers
        self.recording: CallRecording | None = None
        self.plans, self.costs = dispatch.plans, dispatch.costs
        self.handlers = dispatch.handlers  # plans are shared

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if get_mode(FAKE) is not None:
            return fake.run(self.state, func, args, kwargs or {})
        if types and any(t.__torch_dispatch__ is not PLAIN for t in types):
            return fake.run(self.state, func, args, kwargs or {}) if TRACED.intersection(types) else NotImplemented
        kwargs = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            if self.recording is not None:
                self.recording.spoil()
            return self._drawing(str(func), args, kwargs)
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plan(func)
        if self.recording is not None:
            self.recording.called(plan)
        with disable_torch_function():
            return self._account(Call(plan, func, args, kwargs))

    def _drawing(self, name: str, args: Arguments, kwargs: Keywords) -> object:
        """One of the operators that save or set a generator's state around a random one, which is what costs."""
        if name not in DRAWING:
            raise NotImplementedError(f"{name} in generated code")
        inner = {key: value for key, value in kwargs.items() if key != "rng_state"}
        operator, *rest = args[DRAWING[name] :]
        assert isinstance(operator, OpOverload)
        out = self.__torch_dispatch__(operator, (), tuple(rest), inner)
        return (torch.cuda.get_rng_state(), out) if name == "run_and_save_rng_state" else out

    def _account(self, call: Call) -> object:
        device = call.device = self._device(call)
        before, self.local.inner = self.local.inner, True
        try:
            with torch._C._DisableTorchDispatch():
                on_host = device < 0 and not any(map(is_physically_meta, call.tensors()))
                out = call.func(*call.args, **call.kwargs) if on_host else self.computed(call)
        finally:
            self.local.inner = before
        if device < 0:
            if call.plan.kernel:
                self.on_the_host(_size((*call.args, out)))
            return out
        if call.plan.fresh:
            self.tag(out, device)
        if call.plan.view:
            self.local.host.now_ns += self.machine.devices[device].cost.view_ns
        elif call.plan.card.transfers and self._crosses(call.args, out):
            self.transfer(call, out)
        else:
            self.submit(call, out)
        return out

    def computed(self, call: Call) -> object:
        """What an operator gives: shapes alone."""
        args, kwargs, func = call.args, call.kwargs, call.plan.func
        if self.answers is not None and self.answers.has(func, shape=True):
            return self._sized(self.answers, func)
        if isinstance(kwargs.get("out"), Tensor):  # Inductor has made it as large as the result is
            return kwargs["out"]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": META}
        args = tuple(META if isinstance(value, torch.device) else value for value in args)
        out = func(*map(to_meta, args), **{name: to_meta(value) for name, value in kwargs.items()})
        place = OPERANDS.get(call.plan.name)
        return out if place is None else laid_out(out, tensors_in(args[place : place + 2]))

    def _sized(self, answers: Answers, func: OpOverload) -> object:
        """The results of an operator whose sizes the values decide."""
        shapes = answers.take(about(func, shape=True))
        assert isinstance(shapes, tuple)
        made = [torch.empty_strided(size, stride, dtype=dtype, device=META) for size, stride, dtype in shapes]
        if len(func._schema.returns) > 1:
            return tuple(made)
        return made[0] if isinstance(func._schema.returns[0].type, torch.TensorType) else made

    def submit(self, call: Call, out: object) -> None:
        """Hand an operator to the machine; one of the program's own is the kernels that it launched."""
        if call.plan.card.workspace and self.recording is not None:
            self.recording.products.add(call.device)
        func = call.plan.func
        if self.answers is None or not self.answers.has(func, kernels=True):
            super().submit(call, out)
            return
        tensors = [tensor for tensor in tensors_in((*call.given, out)) if device_of(tensor) >= 0]
        for kernel in self.answers.kernels(about(func, kernels=True)):
            launched(self.state, call.device, kernel.cost, tensors, tensors[-1:])

    def on_the_host(self, size_bytes: int) -> None:
        """An operator on host tensors, which reads and writes so many bytes."""
        self.local.host.now_ns += self.machine.installed[0].cost.host_operator_ns(size_bytes)

    def _device(self, call: Call) -> int:
        """Where an operator's results are: where it says so, else where its tensors are."""
        named = (value for value in call.args if isinstance(value, torch.device))
        wanted = call.kwargs.get("device") or next(named, None)
        if wanted is not None:
            return self.state.index(wanted) if wanted.type == "cuda" else CPU
        return max(map(device_of, call.tensors()), default=NOWHERE)

    def _crosses(self, args: Arguments, out: object) -> bool:
        places = {device_of(tensor) for tensor in tensors_in((*args, out))}
        return len(places) > 1

    def transfer(self, call: Call, out: object) -> None:
        """A copy between the host and a device, or two devices, for which the host waits."""
        written, source = call.args[:2] if call.plan.mutated else (tensors_in((out,))[0], call.args[0])
        transfer(self.state, source, written, False, late=False)


class Pricing(Accounting):
    """The mode under which Inductor compiles: tensors on a device have neither values nor memory, work has a price.

    So the cost model answers what Inductor measures: matrix products in other shapes, or of several libraries.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(dispatch)
        self.spent_ns = 0

    def tag(self, out: object, device: int) -> None:
        """Let the results be on `device`."""
        for tensor in tensors_in((out,)):
            storage = storage_of(tensor)
            if storage._wt is HOST_TAG:
                attach(storage, Tag(device, 0))

    def submit(self, call: Call, out: object) -> None:
        """Add an operator's time on the device to what was spent."""
        if call.plan.kernel:
            call.out, model = out, self.machine.devices[call.device].cost
            described = signature(call, self.state.tf32(call.plan.card.tf32))
            self.spent_ns += model.kernel(described).duration_ns

    def transfer(self, call: Call, out: object) -> None:
        """Copies are no part of what Inductor measures."""

    def on_the_host(self, size_bytes: int) -> None:
        """Nor is what happens on the host."""


class Folding(Pricing):
    """The mode under which Inductor computes constants: tensors on a device have values, and lie on the CPU."""

    def computed(self, call: Call) -> object:
        """What an operator gives, on the CPU."""
        args, kwargs = call.args, call.kwargs
        if any(map(is_physically_meta, call.tensors())):
            return super().computed(call)
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if "device" in kwargs:
            kwargs["device"] = CPU_DEVICE
        args = tuple(CPU_DEVICE if isinstance(value, torch.device) else value for value in args)
        return call.plan.run(*args, **kwargs) if call.plan.builtin else call.func(*args, **kwargs)


def _size(values: Iterable[object]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(values))
