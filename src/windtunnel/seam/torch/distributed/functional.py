"""Functional collectives: new tensors, ready after `wait_tensor` (torch.distributed._functional_collectives)."""

from __future__ import annotations

from functools import partial

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.dispatch.recorder import nothing
from windtunnel.seam.torch.distributed import known_values, played
from windtunnel.seam.torch.distributed.collectives import (
    Asked,
    bytes_of,
    goes_on,
    meeting,
    place,
    set_off,
    stream_of,
    submit,
)
from windtunnel.seam.torch.distributed.groups import Group, Groups, Queued
from windtunnel.seam.torch.distributed.nodata import lacks_values, with_values
from windtunnel.seam.torch.distributed.values import REDUCING, carried, check, delivered, divided, each, truth
from windtunnel.seam.torch.distributed.work import CALLS
from windtunnel.seam.torch.plans.arguments import Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import CPU, is_physically_meta, tag_of

FUNCTIONAL = (
    "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "all_gather_into_tensor",
    "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor",
    "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced", "all_to_all_single", "broadcast", "broadcast_",
)  # fmt: skip
"""Functional collectives, which DTensor and tensor parallelism use (torch.distributed._functional_collectives)."""


def functional(dispatch: Dispatch, call: Call) -> object:
    """A functional collective: new tensors on the same device, ready after `wait_tensor`."""
    groups: Groups = dispatch.state.groups
    group = groups.of(_group_of(call))
    if group is None:
        return dispatch.compute(call.but(device=CPU))
    reads = call.tensors()
    group = place(dispatch, group, call, reads)
    name, args, device, named = call.plan.name, call.args, call.device, call.named()
    size = sum(map(bytes_of, reads))
    if "src" in named:
        named["root_rank"] = named["src"]
    reduction = str(named.get("reduce_op", "")).upper()
    described = groups.descriptions.collective(name, reads, [], group.place, reduction, named)
    row, stream = group.collective(name), stream_of(dispatch, group, device, True)
    asked = Asked(group, described, row, stream, device, size, group.timeout(dispatch.local.host.now_ns))
    queued = Queued(None, tensors=reads)

    def put(site: int) -> None:
        assert stream is not None
        began_ns = stream.ready_ns
        submit(dispatch, stream, row, size, (reads, made), site)
        group.called(described.operation.name, began_ns, stream.ready_ns)
        queued.event = groups.mark(stream, 0)

    if dispatch.recorder is not None:
        dispatch.recorder.again = partial(_replayed, dispatch)
    away = stream is not None and goes_on(group) and dispatch.recorder is None
    if away and not lacks_values(args):
        out = _shells(call)
    elif away:
        out = dispatch.compute(call)
    else:
        with meeting(dispatch, asked) as site:
            out = _functional_values(dispatch, group, call)
    made = tensors_in((out,))
    if device >= 0:
        dispatch.tag(out, device)
        if lacks_values(args):
            known_values.share(dispatch.state, name, made)
    if stream is None:
        if CALLS.depth:
            CALLS.queued = queued
        return out
    if stream is not None and away:

        def values() -> None:
            if lacks_values(args):
                _known(dispatch, group, call, out)
            else:
                got = _functional_values(dispatch, group, call)
                for into, tensor in zip(made, tensors_in((got,)), strict=True):
                    with torch._C._DisableTorchDispatch():
                        into.detach().copy_(tensor)

        set_off(dispatch, asked, (values, put), queued, made)
    else:
        put(site)
    for tensor in made:
        groups.promise(tag_of(tensor), queued)
    return out


def _group_of(call: Call) -> str | torch.ScriptObject:
    """The name of a functional collective's group, which comes last."""
    name: str | torch.ScriptObject = call.kwargs["group_name"] if "group_name" in call.kwargs else call.args[-1]
    return name


def _replayed(dispatch: Dispatch, call: Call) -> object:
    """A captured functional collective in a graph's replay."""
    groups: Groups = dispatch.state.groups
    found = groups.of(_group_of(call))
    assert found is not None
    group = found.of_device(call.device)
    args, kwargs = group.routed(call.plan.names, call.args, call.kwargs)
    return _functional_values(dispatch, group, call.but(args=args, kwargs=kwargs))


def _shells(call: Call) -> object:
    """What a functional collective will give, without its values."""
    if (written := _written(call)) is not None:
        return written
    with torch._C._DisableTorchDispatch():
        args = each(call.args, lambda tensor: tensor.to("meta"))
        shapes = call.func(*args, **call.kwargs)
        return each(shapes, lambda tensor: torch.empty_like(tensor, device="cpu"))


def _written(call: Call) -> object:
    """What a functional collective writes into; None for one that makes what it gives."""
    return call.kwargs["out"] if "out" in call.kwargs else call.args[0] if call.plan.name.endswith("_") else None


def _functional_values(dispatch: Dispatch, group: Group, call: Call) -> object:
    """Run it on gloo to its end; an average for NCCL is a sum, divided: not every version's gloo has averages."""
    args = call.args
    dtype = next((tensor.dtype for tensor in tensors_in(args)), None)
    mean = False
    if group.nccl:
        at = call.plan.names.index("reduce_op") if call.plan.name in REDUCING else len(args)
        reduction = "".join(args[at : at + 1]).upper()
        mean = reduction == "AVG"
        check(call.plan.name, tensors_in(args), [], group.size, reduction)
        args = tuple("sum" if mean and at == i else each(value, carried) for i, value in enumerate(args))
    call = call.but(args=args)
    if lacks_values(args):
        out = dispatch.compute(call)
        _known(dispatch, group, call, out)
        return out
    with with_values(dispatch.local):
        if group.alone:
            out = dispatch.compute(call)
        elif group.is_partial:
            voices = played.voices(dispatch.state.groups, group, call.plan.name)
            out = played.functional(voices, call.plan.name, call.named())
        else:
            out = _lent(dispatch, call)
    with torch._C._DisableTorchDispatch():
        for tensor in tensors_in((out,)):
            if mean and not group.alone:
                divided(tensor, group.size)
        if group.nccl and call.plan.name in REDUCING:
            each(out, truth)
    return out if dtype is None or not group.nccl else each(out, lambda tensor: delivered(tensor, dtype))


def _known(dispatch: Dispatch, group: Group, call: Call, out: object) -> None:
    """Take what is known of a collective's inputs to what it gave, where neither has values."""
    named, reads, writes = call.named(), tensors_in(call.args), tensors_in((out,))
    reduction = str(named.get("reduce_op", "")).upper()
    known_values.carry(dispatch.state, group, known_values.Moved(call.plan.name, named, reduction, reads, writes))


def _lent(dispatch: Dispatch, call: Call) -> object:
    """What gloo makes of tensors that it is lent, in memory that no thread of its own holds."""
    lending = dispatch.state.groups.lending
    written = _written(call)
    given = {name: each(value, lending.lend) for name, value in call.kwargs.items()}
    args = each(call.args, lending.lend)
    out = dispatch.compute(call.but(args=args, kwargs=given, device=CPU))
    with torch._C._DisableTorchDispatch():
        for tensor in tensors_in((out,)):
            lending.remember(torch.ops._c10d_functional.wait_tensor(tensor))
        return each(out, torch.clone) if written is None else written


def wait_tensor(dispatch: Dispatch, call: Call) -> Result:
    """_c10d_functional::wait_tensor: the current stream waits for the collective that made the tensor."""
    groups: Groups = dispatch.state.groups
    if dispatch.recorder is not None:
        dispatch.recorder.again = nothing
    promised = groups.pending.pop(id(tag_of(call.args[0])), None)
    if promised is not None:
        groups.awaited(promised[1])
    if is_physically_meta(call.args[0]):
        return call.args[0]
    call.device = max(CPU, tag_of(call.args[0]).device)
    return dispatch.compute(call)


def wrap(dispatch: Dispatch, call: Call) -> Result:
    """_c10d_functional::_wrap_tensor_autograd: the tensor again, for autograd; no kernel."""
    if dispatch.recorder is not None:
        dispatch.recorder.again = nothing
    if is_physically_meta(call.args[0]):  # whose own kernel gives another tensor, and nobody would wait for it
        return AsyncCollectiveTensor(call.args[0])
    call.device = tag_of(call.args[0]).device
    return dispatch.compute(call)


HANDLERS: dict[str, Handler] = {
    **{f"_c10d_functional::{name}": functional for name in FUNCTIONAL},
    "_c10d_functional::wait_tensor": wait_tensor,
    "_c10d_functional::_wrap_tensor_autograd": wrap,
}
"""Operators with handlers of their own."""
