"""Every aten operator passes here: check devices, run on the CPU, tag what came out, submit to the machine.

Speed matters: the plain case, tensors of one device and no keywords, takes one pass over the arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from time import perf_counter_ns as clock_ns
from typing import NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from windtunnel.machine.machine import Cost
from windtunnel.operators import described
from windtunnel.seam.torch.dispatch import constructors, fake, otherwise, overlaps, without_kernel
from windtunnel.seam.torch.dispatch.constructors import OWN
from windtunnel.seam.torch.dispatch.described import handler as handler_of_described
from windtunnel.seam.torch.dispatch.deviations import Deviations
from windtunnel.seam.torch.dispatch.generators import draw, fits
from windtunnel.seam.torch.dispatch.gradients import meet, return_to_host
from windtunnel.seam.torch.dispatch.parts import HigherOrderPlan, composite, run_python, tensorless
from windtunnel.seam.torch.dispatch.recorder import Recorder
from windtunnel.seam.torch.plans import messages
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, Types, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.layout import IN_LINE, disorder
from windtunnel.seam.torch.plans.plan import (
    Plan,
    allocates_results_only,
    common_device,
    numbers_as_tensors,
    python_kernel,
    registered,
    selects,
)
from windtunnel.seam.torch.plans.signature import on_cpu, signature
from windtunnel.seam.torch.state import blank, cublas, handles
from windtunnel.seam.torch.state.host_guard import MANY
from windtunnel.seam.torch.state.reuse import reusing
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import (
    CPU,
    FLOATING,
    HOST_TAG,
    NOWHERE,
    TRACED,
    disable_torch_function,
    is_contiguous,
    parts_of,
    size_of,
    storage_of,
    tag_of,
)

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided
PLAIN = torch._C._disabled_torch_dispatch_impl
CPU_DEVICE = torch.device("cpu")
NONE_OR_FIRST = ((), (0,))
NUMBERS = frozenset({int, float, bool, type(None)})
FAKE = torch._C._TorchDispatchModeKey.FAKE
get_mode = torch._C._get_dispatch_mode
ADDITIONS = ("aten::add", "aten::add_")
MOST_HOST_COSTS = 10_000
"""How many are kept: a program's data may come in any number of shapes."""
Handler = Callable[["Dispatch", Call], object]


class Listed(NamedTuple):
    """How an operator over lists is launched as a whole: the name of its cost in `Dispatch.costs`, and the device."""

    priced: tuple[Hashable, ...]
    device: int


class Dispatch(TorchDispatchMode):
    """The dispatch mode of one thread's emulation; every thread enters its own entry of the same object."""

    def __init__(self, state: State, handlers: dict[str, Handler], deviations: Deviations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state = state
        self.local = state.local
        self.machine = state.machine
        self.room = state.room
        self.handlers = handlers
        self.deviations = deviations
        self.plans = state.plans
        self.costs: dict[Hashable, Cost] = {}
        self.host_costs: dict[Hashable, int] = {}  # ns of operators on host tensors
        self.listed: dict[Hashable, Listed] = {}  # calls of operators over lists, by their form (`kernels.foreach`)
        self.recorder: Recorder | None = None
        self.work = state.work if state.work is not None and state.work.thread == threading.get_ident() else None
        self.traced = 0  # by how many modes that write operators with real values into a graph (`make_fx`)

    @property
    def parts(self) -> AbstractContextManager[object]:
        """What to enter where an operator is run as others: they come here again, and before to a recorder."""
        return self if self.recorder is None else self.recorder.parts()

    def again(self) -> Self:
        """The same mode for another thread."""
        other = type(self)(self.state, self.handlers, self.deviations)
        other.costs, other.listed, other.host_costs = self.costs, self.listed, self.host_costs
        return other

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Dynamo compiles beneath this mode, which is no mode of the program's."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles the program's frames although this mode is on."""
        return True

    supports_higher_order_operators = True

    def plan(self, func: OpOverload) -> Plan:
        """The plan of an operator, made on its first use."""
        made = self.deviations.plan(func) if hasattr(func, "_schema") else HigherOrderPlan(func)
        plan = self.plans[id(func)] = made
        if not plan.builtin and (key := python_kernel(func)) is not None:
            plan.handler = partial(run_python, key)
        if self.state.overridden and func.name() in self.state.overridden:
            plan.handler = overridden
        if (description := described.of(func.name()) or without_kernel.shipped(func)) is not None:
            plan.handler = handler_of_described(plan, description)
        if plan.handler is not None:
            return plan
        plan.handler = self.handlers.get(func.name()) or self.handlers.get(plan.name)
        if plan.handler is None and plan.tensorless:
            plan.handler = tensorless
        if plan.handler is None and plan.composite:
            plan.handler = composite
        kinds = without_kernel.missing(func)
        if plan.handler is None and not kinds.isdisjoint(without_kernel.PLAIN):
            plan.handler, plan.refused = without_kernel.refuse, kinds
        elif plan.handler is None:
            plan.refused = kinds
        if plan.handler is None and without_kernel.in_a_binary(func):
            plan.handler = without_kernel.explain
        plan.memory = plan.row is not None or not allocates_results_only(plan)
        known = plan.card
        special = known.tf32 or known.library or known.workspace or known.waits in ("always", "mask")
        special = special or bool(plan.memory and (plan.mutated or known.hidden_writes))
        plan.simple = plan.kernel and not special and plan.mutated in NONE_OR_FIRST and not plan.lists
        plan.direct = plan.handler is None and not plan.factory and not plan.looks
        return plan

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if torch.empty is not OWN.empty:  # which is always among the constructors that a program replaces
            with constructors.own():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if (work := self.work) is not None and work.inside:
            work = None
        if work is not None:
            if clock_ns() - work.left_ns > work.least_ns:
                work.gap(clock_ns(), func.name(), args)
            work.inside = True
        try:
            for kind in types:
                if kind.__torch_dispatch__ is not PLAIN:
                    # Nothing happens on a device where shapes alone are traced. Other subclasses take themselves apart
                    # first: what they are made of comes here again.
                    traced = TRACED.intersection(types)
                    return fake.run(self.state, func, args, kwargs or {}) if traced else NotImplemented
            if self.traced and (tracer := fake.tracer()) is not None:
                # It belongs before this mode, but PyTorch keeps it after all others, where it would see the CPU.
                with fake.without_tracer(), self.parts:
                    return tracer.__torch_dispatch__(func, types, args, kwargs)
            plan = self.plans.get(id(func))
            if plan is None:
                plan = self.plan(func)
            if plan.direct and not kwargs:
                return self.plain(plan, func, args)
            if plan.handler is not None:
                return plan.handler(self, Call(plan, func, args, kwargs or {}))
            if plan.factory:
                with disable_torch_function():
                    return self.create(Call(plan, func, args, kwargs or {}))
            if kwargs:
                return self.general(Call(plan, func, args, kwargs))
            if plan.looks:
                value = args[0]
                if value.__class__ is Tensor or value.__class__ is Parameter:
                    try:
                        tag = storage_of(value)._wt
                    except (NotImplementedError, RuntimeError, ValueError):
                        return self.general(Call(plan, func, args, {}))
                    if tag is HOST_TAG:
                        return func._op(*args)
                    if tag.device >= 0:
                        if self.machine.concurrent:
                            self.state.order.leaf_used(value, tag.device)
                        out = plan.run(*args)
                        self.local.host.now_ns += self.machine.devices[tag.device].cost.view_ns
                        return out
            return self.plain(plan, func, args)
        finally:
            if work is not None:
                work.inside = False
                work.left_ns = now_ns = clock_ns()
                if now_ns > work.due_ns:
                    work.sample(now_ns)

    def plain(self, plan: Plan, func: OpOverload, args: Arguments) -> object:
        """Tensors of one device and numbers, without keywords; what turns out to be anything else is `general`."""
        device, first, ordered, scattered, shared = NOWHERE, None, plan.ordered, False, False
        key: list[Hashable] = [plan, args[0] is args[1]] if ordered and len(args) > 1 else [plan]
        for value in args:
            if (kind := value.__class__) is Tensor or kind is Parameter:
                try:
                    tag = storage_of(value)._wt
                    key += (value.shape, value.dtype)
                    scattered = scattered or (ordered and not value.is_contiguous())
                except (NotImplementedError, RuntimeError, ValueError):  # sparse ones lack storage, nested ones sizes
                    return self.general(Call(plan, func, args, {}))
                if (found := tag.device) != device:
                    if found < CPU or device != NOWHERE:
                        return self.general(Call(plan, func, args, {}))
                    device, first = found, tag
                shared = shared or (value is not args[0] and tag is first and bool(plan.mutated))
            elif kind in NUMBERS:
                if plan.attributes:
                    key.append(value)
            elif (found := device_of_other(plan, value, key)) == FLOATING or NOWHERE != found != device != NOWHERE:
                return self.general(Call(plan, func, args, {}))
            elif found != NOWHERE:
                device, scattered = found, scattered or (ordered and not all(map(is_contiguous, value)))
        if device == CPU and plan.builtin:
            return self.on_host(Call(plan, func, args, {}, CPU, key), ())
        if device < 0:
            return self.general(Call(plan, func, args, {}))
        if plan.called or self.room.near:
            out = self.compute(Call(plan, func, args, {}, device))
        else:
            try:
                out = plan.strided(*args)
            except RuntimeError as error:
                out = otherwise.computed(Call(plan, plan.run, args, {}), error)
        if plan.view:
            return self.viewed(out, args, device)
        if plan.fresh:
            if out.__class__ is Tensor and out.layout is STRIDED:
                key += (size_of(out), out.dtype)  # which the inputs do not tell of what is repeated, padded or masked
                if (storage := storage_of(out))._wt is HOST_TAG:
                    self.state.place(storage, device)
            else:
                self.tag(out, device)
                key += [size_of(tensor) for tensor in tensors_in((out,))]
        key += [disorder(args, out)] if scattered else ()
        local, machine, memory = self.local, self.machine, plan.memory and (scattered or not plan.copies)
        plain = plan.simple and not (machine.watching or shared)
        if plain and (cost := self.costs.get(name := (*key, device))) is not None:
            stream = local.streams[device]
            machine.launch(local.host, stream, reusing(machine, stream, cost, (args, out)) if cost.is_large else cost)
            if memory:
                self.state.kernels.run(Call(plan, func, args, {}, device, key, out), device, stream, name)
            if plan.mutated:
                first.epoch = stream.epoch  # type: ignore[union-attr]  # it is what was written
                if first.blank is not None:  # type: ignore[union-attr]
                    blank.wrote(args[0])
            return out
        self.submit(Call(plan, func, args, {}, device, key), out)
        return out

    # ------------------------------------------------------------------ the general case

    def general(self, call: Call) -> Result:
        """Tensors, keywords, devices and subclasses in whatever mixture."""
        with disable_torch_function():
            return self._general(call)

    def _general(self, call: Call) -> object:
        plan = call.plan
        if plan.refused:
            without_kernel.check(plan.refused, call)
        floating = [] if plan.factory else self.scan(call)
        if plan.factory or "device" in call.kwargs or "pin_memory" in call.kwargs:
            return self.create(call)
        if call.device < 0:
            if call.device == CPU and not plan.card.anywhere:
                self.settle(floating)
                floating = []
            if call.device == NOWHERE:
                call.args = numbers_as_tensors(plan.func, call.args)
            return self.on_host(call, floating)
        for tensor in floating:
            self.tag(tensor, call.device)
        return self.on_device(call)

    def on_device(self, call: Call) -> object:
        """Run an operator whose tensors live on a device, tag its results and submit it."""
        plan, device = call.plan, call.device
        out = self.compute(call)
        if plan.view:
            self.tag_parts(out, device)
            return self.viewed(out, call.args, device)
        if plan.fresh:
            self.tag(out, device)
        for position in plan.mutated:
            self.tag_parts(call.args[position], device)
        for name in plan.mutated_keywords:
            self.tag_parts(call.kwargs.get(name), device)
        if plan.resizes:
            self.resized(call)
        self.submit(call, out)
        return out

    def viewed(self, out: Result, args: Arguments, device: int) -> Result:
        """An operator made `out`, a view of a device's tensor."""
        self.local.host.now_ns += self.machine.devices[device].cost.view_ns
        if self.machine.concurrent and isinstance(args[0], Tensor):
            self.state.order.leaf_used(args[0], device)
        return out

    def on_host(self, call: Call, floating: Sequence[Tensor]) -> object:
        """Run an operator on host tensors; what floating tensors give floats as well."""
        plan, late = call.plan, self.state.late
        if late.pending:
            late.host_operation(call)
        if plan.resizes:
            self.state.unpin_fixed(call.tensors())
        call.device = CPU
        out = call.out = self.compute(call)
        if plan.kernel:
            self.local.host.now_ns += self.host_ns(call)
        if late.sources:
            for tensor in tensors_in([call.args[i] for i in plan.mutated]):
                late.overwritten(tensor)
        if floating and plan.fresh:
            for tensor in tensors_in((out,)):
                self.float(tensor)
        return out

    def host_ns(self, call: Call) -> int:
        """What an operator on host tensors takes the host, in nanoseconds."""
        out = call.out
        if call.key is None or out.__class__ is not Tensor or out.layout is not STRIDED:
            return on_cpu(self.machine, call)
        name = (*call.key, size_of(out), out.dtype)
        known = self.host_costs.get(name)
        if known is None:
            if len(self.host_costs) == MOST_HOST_COSTS:
                self.host_costs.clear()
            known = self.host_costs[name] = on_cpu(self.machine, call)
        return known

    def scan(self, call: Call) -> list[Tensor]:
        """Find the device of a call's tensors; returns those that float, and raises PyTorch's error on a mixture."""
        plan = call.plan
        device = NOWHERE
        floating: list[Tensor] = []
        numbers: list[Tensor] = []
        known = plan.card
        for name, value in (*zip(plan.names, call.args, strict=False), *call.kwargs.items()):
            for tensor in tensors_in((value,)):
                found = tag_of(tensor).device
                if found == FLOATING:
                    floating.append(tensor)
                elif found == device:
                    continue
                elif found == CPU and (
                    (tensor.dim() == 0 and not plan.checked and name not in plan.written) or name in known.host
                ):
                    if tensor.requires_grad:
                        numbers.append(tensor)
                elif device == NOWHERE or (device == CPU and known.anywhere):
                    device = found  # what came before lay on the host, which such an operator allows
                elif not (known.anywhere or tensor.is_meta or (plan.name in ADDITIONS and meet(call.args))):
                    raise messages.mismatch(call)
        for tensor in numbers if device >= 0 else ():
            return_to_host(tensor)
        call.device = device
        return floating

    def create(self, call: Call) -> Result:
        """Run an operator that says where its result shall be; `call.device` is that of its tensors."""
        if get_mode(FAKE) is not None:
            return fake.run(self.state, call.plan.func, call.args, dict(call.kwargs))
        plan, device, local = call.plan, call.device, self.local
        kwargs = call.kwargs = dict(call.kwargs)
        wanted = kwargs.get("device")
        explicit = local.explicit or (wanted is not None and kwargs.get("pin_memory") is not None)  # `named`
        if pinned := kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if wanted is None:
            target = device
        elif (kind := wanted.type) not in ("cpu", "cuda"):
            return call.func(*call.args, **kwargs)
        else:
            kwargs["device"] = CPU_DEVICE
            target = CPU if kind == "cpu" else self.state.index(wanted)
            if target < 0 and not explicit and device >= 0:
                target = device
        call.device = target = CPU if target == NOWHERE else target
        if kwargs.get("generator") is not None:
            fits(self.state, kwargs["generator"], target)
        shape = call.args[0] if call.args else kwargs.get("size")
        if target >= 0 and plan.factory and isinstance(shape, (list, tuple)) and (count := prod(shape)) >= MANY:
            self.state.guard.expect(target, count, kwargs.get("dtype"), empty=plan.empty)
        out = call.out = self.compute(call)
        if target >= 0:
            self.tag(out, target)
            self.submit(call, out)
            return out
        if pinned:
            self.state.pin(out)
        elif not explicit and device == NOWHERE and all(tag_of(t).device != CPU for t in tensors_in(call.args)):
            for tensor in tensors_in((out,)):  # what is made like a host tensor lies on the host
                self.float(tensor)
            return out
        local.host.now_ns += on_cpu(self.machine, call)
        return out

    # ------------------------------------------------------------------ pieces

    def compute(self, call: Call) -> Result:
        """Compute the values: Python kernels see the physical device, random operators use the device's generator."""
        plan, args, kwargs, device, local = call.plan, call.args, call.kwargs, call.device, self.local
        if device >= 0 and self.room.near:
            self.state.guard.before(call)
        before, local.inner = local.inner, True
        run = plan.run if device >= 0 and call.func is plan.func else call.func
        try:
            if plan.random and (device >= 0 or kwargs.get("generator") is None):
                with self.state.default_generator:
                    return draw(self.state, call)
            return run(*args, **kwargs) if plan.builtin else plan.run_foreign(call.func, args, kwargs)
        except RuntimeError as error:
            if device < 0:
                raise
            if "DefaultCPUAllocator" in str(error):
                self.state.host_memory_ended(error, device)
            return otherwise.computed(call.but(func=run), error)
        finally:
            local.inner = before

    def snapshot_values(self, tensor: Tensor) -> Tensor:
        """The values of a device tensor as they are now, for a copy that lands later."""
        return tensor.detach().clone()

    def submit(self, call: Call, out: Result) -> None:
        """Hand an operator, which gave `out`, to the machine, on its device's current stream."""
        plan, args, device = call.plan, call.args, call.device
        if not plan.kernel:
            model = self.machine.devices[device].cost
            self.local.host.now_ns += model.empty_ns if plan.empty else model.view_ns
            if plan.empty and not plan.written and device >= 0:
                self.state.guard.made_empty(out)
            return
        call.out, known = out, plan.card
        if known.library:
            handles.use(self.state, call)
        key = call.key
        if key is None:
            key = [plan]
            if plan.factory and out.__class__ is Tensor:
                key += (out.shape, out.dtype)
            else:
                for tensor in tensors_in((*call.given, out)):
                    key += (size_of(tensor), tensor.dtype)
            if plan.attributes:
                key += [str(value) for value in args if not tensors_in((value,))]
            key += [disorder(args, out)] if plan.ordered else ()
        tf32, memory = False, plan.memory
        if known.tf32:
            tf32, lies = self.state.tf32(known.tf32), plan.layout and plan.layout(args)
            key += [tf32, lies]
            memory = memory and not (plan.copies and IN_LINE.issuperset(lies or ()))
        name = (*key, device)
        cost, machine = self.costs.get(name), self.machine
        if cost is None:
            self.deviations.check(plan.name, args, out)
            cost = self.costs[name] = machine.price(machine.devices[device], signature(call, tf32))
            machine.first_use(self.local.host, machine.devices[device], plan.name)
            if plan.written and plan.lists:
                overlaps.look_in_lists(self.state, call)
            self.state.sites.frame()  # sees a stand-in's function, should it be one (`Finder.stand_in_ran`)
        local, state, stream = self.local, self.state, self.local.streams[device]
        if cost.is_large:
            cost = reusing(machine, stream, cost, (call.given, out))
        if plan.written and not plan.lists:
            overlaps.look(state, call)
        if known.workspace:
            cublas.use(state, plan.name, device, stream.index)
        if machine.watching:
            if machine.concurrent:
                stream = state.order.stream_of(device, stream)
            site = state.site()
            machine.launch(local.host, stream, cost, site if machine.concurrent else 0)
            state.order.accesses(call, stream, site)
        else:
            machine.launch(local.host, stream, cost)
            if plan.written or known.hidden_writes:
                state.order.unwatched(call.written(), stream)
        if memory:
            state.kernels.run(call, device, local.streams[device], name)
        if known.waits == "always" or (known.waits == "mask" and selects(args)):
            machine.synchronize_stream(local.host, stream, plan.name, state.site())
            state.synchronized(plan.name, stream)

    def tag(self, out: object, device: int) -> None:
        """Give every new storage in a result memory on `device`."""
        for tensor in (out,) if out.__class__ is Tensor else tensors_in((out,)):
            try:
                storage = storage_of(tensor)
            except (NotImplementedError, RuntimeError):
                self.tag(parts_of(tensor), device)
                continue
            tag = storage._wt
            if tag is HOST_TAG or tag.device == FLOATING:
                self.state.place(storage, device)

    def tag_parts(self, value: object, device: int) -> None:
        """The same for sparse tensors, which get new parts where dense ones make a view or write in place."""
        if isinstance(value, Tensor) and value.layout is not STRIDED:
            self.tag(value, device)

    def float(self, tensor: Tensor) -> None:
        """Mark a new host tensor as made by C++: it adopts the first device that it meets, which it costs time."""
        try:
            storage = storage_of(tensor)
        except (NotImplementedError, RuntimeError):
            return
        if storage._wt is HOST_TAG and not tensor.is_meta:
            self.state.let_float(storage)

    def settle(self, floating: list[Tensor]) -> None:
        """What met a tensor on the host in an operator lies there too, and the host made it."""
        for tensor in floating:
            for part in parts_of(tensor) or [tensor]:
                storage_of(part)._wt = HOST_TAG
                if self.machine.installed:
                    cost = self.machine.installed[0].cost
                    self.local.host.now_ns += cost.host_operator_ns(part.numel() * part.element_size())

    def resized(self, call: Call) -> None:
        """Follow storages whose size an operator may have changed."""
        for tensor in call.tensors():
            if tensor.layout is not STRIDED:  # sparse ones get new parts
                continue
            storage = storage_of(tensor)
            tag = storage._wt
            if tag is not HOST_TAG and tag.device >= 0 and tag.size != storage.nbytes():
                self.state.resized(storage)


def device_of_other(plan: Plan, value: object, key: list[Hashable]) -> int:
    """The device of the tensors in a list; NOWHERE of what has none, FLOATING where `general` is to look at it."""
    if isinstance(value, Tensor):
        return FLOATING
    if not isinstance(value, (list, tuple)):
        key += (value,) if plan.attributes else ()
        return NOWHERE
    if value and isinstance(value[0], Tensor):
        found = common_device(value, key)
        return found if found >= CPU else FLOATING
    if plan.attributes:
        key.append(tuple(value))
        return NOWHERE
    return FLOATING if value and not isinstance(value[0], (int, float)) else NOWHERE


def hand_on(dispatch: Dispatch, call: Call) -> object:
    """An operator without a handler of its own: what those around it go on with."""
    return dispatch.general(call) if call.kwargs else dispatch.plain(call.plan, call.plan.func, call.args)


def overridden(dispatch: Dispatch, call: Call) -> object:
    """An operator of PyTorch's with a kernel of the program's under CUDA's key, as long as that is there."""
    func = call.plan.func
    if registered(func.name(), "CUDA"):
        return run_python(torch._C.DispatchKey.CUDA, dispatch, call)
    dispatch.state.overridden.discard(func.name())
    del dispatch.plans[id(func)]
    return dispatch.__torch_dispatch__(func, (), call.args, call.kwargs)


def emulation() -> Dispatch | None:
    """The dispatch mode of this thread's emulation."""
    return next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Dispatch)), None)
