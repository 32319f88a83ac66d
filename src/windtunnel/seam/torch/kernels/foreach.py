"""Operators over lists of tensors: one kernel for all, or one operator a tensor where CUDA has no kernel for the lists.

Which lists have one: `check_fast_path_restrictions` in aten/src/ATen/native/ForeachUtils.h; what else each operator
asks: aten/src/ATen/native/cuda/Foreach*.cu. What goes tensor by tensor is an operator of its own there too, with
memory, time and errors of its own, so that tensors of several devices come out right.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch, Listed, hand_on
from windtunnel.seam.torch.dispatch.parts import restore_dispatch_keys
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.plans.plan import Plan, common_device
from windtunnel.seam.torch.state.reuse import reusing
from windtunnel.seam.torch.tags import (
    NOWHERE,
    ORDINARY,
    device_of,
    dtype_of,
    is_contiguous,
    shape_of,
    size_of,
    storage_of,
)

Tensor = torch.Tensor
PREFIX = "aten::_foreach_"
EACH = torch._C.DispatchKey.CompositeExplicitAutograd
"""Where PyTorch's loops over the tensors are registered."""
WIDENING = frozenset({"div", "pow", "lerp"})
"""Operators whose result of whole numbers would have another type."""
WHOLE_TOO = frozenset(
    "add sub mul abs neg zero max copy clone".split()  # noqa: SIM905
)
"""Operators that have a kernel for whole numbers; all others compute them tensor by tensor."""
REAL_ONLY = frozenset({"abs", "norm", "max"})
"""Operators without a kernel for complex numbers."""
SCALARS = "scalars"
"""The argument with a number for each tensor: a list, or a tensor of the host."""
ORDERS = (1, 2, math.inf)
"""The norms that have a kernel."""


def foreach(dispatch: Dispatch, call: Call) -> object:
    """An operator over lists, at once or one tensor after the other."""
    plan = call.plan
    form = None if call.kwargs or plan.called else _form(plan, call.args)
    known = None if form is None else dispatch.listed.get(form)
    if known is not None:
        return _again(dispatch, call, known)
    if SCALARS in plan.names:
        _require_on_host(call.named()[SCALARS])
    lists = [value for value in call.given if _tensors(value)]
    if not lists or (device_of(lists[0][0]) < 0 and all(map(_on_host, lists))):
        return dispatch.general(call)
    name = plan.name.removeprefix(PREFIX).removesuffix("_")
    if not _alike(lists, name == "copy") or not _has_kernel(name, lists[0], call.args, call.kwargs):
        with dispatch.parts, restore_dispatch_keys(dispatch.state):
            return plan.func._op_dk(EACH, *call.args, **call.kwargs)
    out = hand_on(dispatch, call)
    if form is not None:
        priced = _priced(plan, call.args, out)
        if priced in dispatch.costs:
            dispatch.listed[form] = Listed(priced, device_of(lists[0][0]))
    return out


def _form(plan: Plan, args: Arguments) -> tuple[Hashable, ...] | None:
    """What of a call decides whether there is a kernel, and what it costs; None where only a closer look tells.

    That is a call with contiguous tensors of one device.
    """
    form: list[Hashable] = [plan]
    devices: set[int] = set()
    try:
        for value in args:
            kind = value.__class__
            if kind is not list and kind is not tuple:
                if kind not in ORDINARY:
                    form += (kind, value) if plan.memory else (kind,)
                    continue
                value = (value,)
            elif not value or not isinstance(value[0], Tensor):
                form.append(tuple(map(type, value)))
                continue
            if not ORDINARY.issuperset(map(type, value)) or not all(map(is_contiguous, value)):
                return None
            devices.update([storage._wt.device for storage in map(storage_of, value)])
            form.append(kind)
            form += map(shape_of, value)
            form += map(dtype_of, value)
    except (NotImplementedError, RuntimeError, ValueError):  # as in `Dispatch.plain`
        return None
    device = devices.pop() if len(devices) == 1 else NOWHERE
    return (*form, device) if device >= 0 else None


def _priced(plan: Plan, args: Arguments, out: object) -> tuple[Hashable, ...]:
    """The name under which `Dispatch.plain` keeps the cost of such a call."""
    key: list[Hashable] = [plan]
    device = NOWHERE
    for value in args:
        if isinstance(value, Tensor) or _tensors(value):
            device = common_device(tensors_in((value,)), key)
    return (*key, *(size_of(tensor) for tensor in tensors_in((out,) if plan.fresh else ())), device)


def _again(dispatch: Dispatch, call: Call, known: Listed) -> object:
    """What `Dispatch.plain` does for a call of a form that has a kernel and was priced."""
    machine = dispatch.machine
    if machine.watching or dispatch.room.near:
        return hand_on(dispatch, call)
    plan, args = call.plan, call.args
    out = call.out = plan.strided(*args)
    priced, device = known
    if plan.fresh:
        dispatch.tag(out, device)
    local = dispatch.local
    stream = local.streams[device]
    cost = dispatch.costs[priced]
    if cost.is_large:
        cost = reusing(machine, stream, cost, (args, out))
    machine.launch(local.host, stream, cost)
    for position in plan.mutated:
        dispatch.state.order.unwatched(args[position], stream)
    if plan.memory:
        dispatch.state.kernels.run(call, device, stream, priced)
    return out


def _require_on_host(scalars: object) -> None:
    """Raises for a tensor of numbers on a GPU (`convert_tensor_to_scalar_list`, native/ForeachUtils.h)."""
    if isinstance(scalars, Tensor) and (device := device_of(scalars)) >= 0:
        raise RuntimeError(f"Expected scalars to be on CPU, got {device_name(device)} instead.")


def _tensors(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Tensor)


def _on_host(tensors: Sequence[Tensor]) -> bool:
    return all(device_of(tensor) < 0 for tensor in tensors)


def _alike(lists: Sequence[Sequence[Tensor]], other_types: bool) -> bool:
    """Whether all tensors are dense ones of one type on one device, and those of one place of one shape and layout."""
    first = lists[0]
    device = device_of(first[0])
    for tensors in lists:
        dtype = tensors[0].dtype if other_types else first[0].dtype
        if len(tensors) != len(first):
            return True  # which is an error of the operator's own
        for tensor, beside in zip(tensors, first, strict=True):
            if (
                tensor.dtype is not dtype
                or device_of(tensor) != device
                or tensor.layout is not torch.strided
                or tensor.shape != beside.shape
            ):
                return False
            if not tensor.is_contiguous() or not beside.is_contiguous():
                if not _dense(tensor):
                    return False
                steps = zip(tensor.shape, tensor.stride(), beside.stride(), strict=True)
                if any(one != other for size, one, other in steps if size != 1):
                    return False
    return True


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill one piece of memory, in whatever order."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _has_kernel(name: str, tensors: Sequence[Tensor], args: Arguments, kwargs: Keywords) -> bool:
    """Whether CUDA has a kernel for such tensors, and for the numbers beside them."""
    first = tensors[0]
    whole = not (first.is_floating_point() or first.is_complex())
    if whole and (name in WIDENING or name not in WHOLE_TOO):
        return False
    if name in REAL_ONLY and first.is_complex():
        return False
    given = [*args[1:], *kwargs.values()]
    if name == "norm":
        return all(order in ORDERS for order in given[:1])
    for value in given:
        if isinstance(value, Tensor):
            if value.dtype is not first.dtype and device_of(value) >= 0:
                return False
        elif isinstance(value, bool | int | float | complex):
            if torch.result_type(first, value) is not first.dtype:
                return False
        elif isinstance(value, list | tuple) and any(
            not isinstance(one, Tensor) and torch.result_type(first, one) is not first.dtype for one in value
        ):
            return False
    return True


HANDLERS = dict.fromkeys(
    sorted({name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith(PREFIX)}),
    foreach,
)
"""Operators with handlers of their own."""
