"""The c10d operators in the dispatch mode: values over gloo, devices as NCCL checks them, one submission each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch
import torch.distributed as dist

from windtunnel.machine.stream import Event, Stream
from windtunnel.seam.torch.dispatch.asserts import AssertFailure
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.distributed import known_values, played
from windtunnel.seam.torch.distributed.described import Described
from windtunnel.seam.torch.distributed.groups import Group, Groups, Queued
from windtunnel.seam.torch.distributed.nodata import with_values
from windtunnel.seam.torch.distributed.under_way import UnderWay
from windtunnel.seam.torch.distributed.values import (
    COMPOSED,
    CONVERTED,
    REDUCING,
    Reduces,
    carried,
    check,
    composed,
    divided,
    each,
    finished,
    is_composed,
    multiplied,
    truth,
)
from windtunnel.seam.torch.distributed.work import CALLS
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.module_paths import BUCKET
from windtunnel.seam.torch.tags import CPU, FLOATING, VERSION, is_physically_meta, tag_of
from windtunnel.trace.operation import Signature

Tensor = torch.Tensor


class Asked(NamedTuple):
    """One call of a collective: what its group's ranks compare, and the row that it becomes on its stream.

    `timeout` is how long NCCL lets it take; None for a group of another backend.
    """

    group: Group
    described: Described
    row: Signature
    stream: Stream | None
    device: int
    size_bytes: int
    timeout: timedelta | None


class Collective(NamedTuple):
    """Positions of an operator's arguments: what it reads, what it writes."""

    reads: int
    writes: int


IN_PLACE = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "barrier")
APART = (
    "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_",
    "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_",
)  # fmt: skip
COLLECTIVES = {
    **{f"c10d::{name}": Collective(0, 0) for name in IN_PLACE},
    **{f"c10d::{name}": Collective(1, 0) for name in APART},
}

TYPE = attrgetter("dtype")
NOTHING = nullcontext()
FLAT = frozenset({"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"})
"""Collectives of which NCCL compares the number of elements, gloo the shapes as well."""

GUESSED_UNTIL = (2, 8)
"""The version from which on a barrier is on the current device, unless it is told another."""

TO_ROOT = "c10d::reduce_"
FROM_ROOT = frozenset({"c10d::broadcast_", "c10d::scatter_"})
NAN = "windtunnel: TORCH_NCCL_NAN_CHECK found a NaN in this rank's input to {name}"


def run(dispatch: Dispatch, call: Call) -> Result:
    """A collective of all ranks of a group."""
    groups: Groups = dispatch.state.groups
    name, named, shape = call.plan.name, call.named(), COLLECTIVES[call.plan.name]
    if (found := groups.of(named["process_group"])) is None:
        return dispatch.compute(call.but(device=CPU))
    reads, writes, size = _touched(name, found, call.args, named)
    group = place(dispatch, found, call, reads if writes is reads else (*writes, *reads))
    func, args, device, barrier = call.plan.func, call.args, call.device, name == "c10d::barrier"
    if barrier and device >= 0 and group.nccl and VERSION < GUESSED_UNTIL:
        device = call.device = next(iter(named["device_ids"]), _unnamed(dispatch, group))
    asynchronous, valueless = bool(named.get("async_op", True)), any(map(is_physically_meta, (*reads, *writes)))
    reduces, reduction = CALLS.reduces, CALLS.reduces.name if name in REDUCING else ""
    if group.nccl:
        check(name, reads, writes, group.size, reduction, named)
    row, timeout = group.collective(name), group.timeout(dispatch.local.host.now_ns)
    described = groups.descriptions.collective(name, reads, writes, group.place, reduction, named)
    stream = stream_of(dispatch, group, device, asynchronous)
    asked = Asked(group, described, row, stream, device, size, timeout)
    if dispatch.recorder is not None:
        dispatch.recorder.again = partial(_replayed, dispatch, reduces)

    def values() -> object:
        if valueless:
            known_values.carry(dispatch.state, group, known_values.Moved(name, named, reduction, reads, writes))
            return _answer(func, args[shape.writes])
        with with_values(dispatch.local) if dispatch.state.no_data else NOTHING:
            return _values(dispatch, group, call, reduces, set(map(TYPE, (*reads, *writes))))

    def put(stream: Stream, site: int) -> int:
        began_ns = stream.ready_ns
        submit(dispatch, stream, row, 0 if barrier else size, (reads, writes), site)
        if group.settings.check_nan and not barrier and not valueless:
            _check_nan(dispatch, group, stream, (name, int(named.get("root_rank", -1))), reads)
        return began_ns

    waits = barrier or group.settings.blocking
    if group.router is not None and stream is not None and not waits and CALLS.depth and goes_on(group):
        CALLS.queued = queued = Queued(None, tensors=(*reads, *writes))

        def finish(site: int) -> None:
            queued.began_ns = put(stream, site)
            group.called(described.operation.name, queued.began_ns, stream.ready_ns)
            queued.event = groups.mark(stream, 0) if asynchronous else None

        site = set_off(dispatch, asked, (values, finish), queued, writes)
        queued.is_of(group, described.operation, site, timeout)
        return _answer(func, args[shape.writes])
    with meeting(dispatch, asked) as site:
        out = values()
    for tensor in writes if device >= 0 and not valueless else ():
        if tensor.layout is not torch.strided:  # gloo gives sparse ones new parts
            dispatch.tag(tensor, device)
    if stream is None:
        CALLS.queued = Queued(None) if CALLS.depth else CALLS.queued
        return out
    began_ns = put(stream, site)
    event = groups.mark(stream, 0) if asynchronous or waits else None
    _hand_over(dispatch, asked, event, (*reads, *writes), (waits, site, began_ns))
    group.called(described.operation.name, began_ns, stream.ready_ns)
    return out


def _touched(name: str, group: Group, args: Arguments, named: Keywords) -> tuple[list[Tensor], list[Tensor], int]:
    """What a collective reads and what it writes, one list where that is the same; and its bytes."""
    shape = COLLECTIVES[name]
    reads = _tensors(args[shape.reads])
    if name == TO_ROOT and _keeps_its_own(group, named):
        return reads, [], sum(map(bytes_of, reads))
    writes = reads if shape.writes == shape.reads else _tensors(args[shape.writes])
    if name == "c10d::allgather_":  # ranks may bring different sizes, but all know every one's
        return reads, writes, sum(map(bytes_of, writes)) // group.size
    return reads, writes, sum(map(bytes_of, reads)) or group.size * sum(map(bytes_of, writes))


def _keeps_its_own(group: Group, named: Keywords) -> bool:
    """Whether a reduce leaves a rank's tensors as they are: NCCL's writes at its root alone, gloo's everywhere."""
    return group.nccl and named["root_rank"] != group.rank


def goes_on(group: Group) -> bool:
    """Whether the host goes on after a call of NCCL, where others might wait for a call of another backend."""
    return group.router is not None and group.met and not group.single


def set_off(
    dispatch: Dispatch,
    asked: Asked,
    how: tuple[Callable[[], object], Callable[[int], None]],
    queued: Queued,
    written: list[Tensor],
) -> int:
    """Let a thread carry a collective, by the first of `how`, and put it on its stream later, by the second.

    Returns the number of the program's line.
    """
    groups: Groups = dispatch.state.groups
    group, call, stream, (values, put) = asked.group, asked.described, asked.stream, how
    assert stream is not None
    host, site = dispatch.local.host, dispatch.state.site()
    made_ns, ready_ns = host.now_ns, dispatch.machine.ready_ns(host, stream, asked.row.name)
    entry = groups.watch.called(group.channel, call.operation, site)

    def carry() -> int:
        with groups.meeting(group, call, ready_ns, site, asked.timeout, (entry, made_ns)) as start_ns:
            transferring(dispatch, asked.row.name)
            values()
        return start_ns

    def finish(start_ns: int) -> None:
        now_ns, host.now_ns = host.now_ns, made_ns  # it was launched then
        stream.ready_ns = max(stream.ready_ns, start_ns)
        put(site)
        host.now_ns = max(host.now_ns, now_ns)
        queued.under_way = None

    queued.under_way = UnderWay(group, entry, carry, finish, written)
    groups.journeys.add(dispatch, queued.under_way)
    return site


def _check_nan(dispatch: Dispatch, group: Group, stream: Stream, what: tuple[str, int], sent: Sequence[Tensor]) -> None:
    """TORCH_NCCL_NAN_CHECK: a kernel that traps where what this rank sends holds a NaN; only its root broadcasts."""
    name, root = what
    if dispatch.state.failure is not None or (name in FROM_ROOT and root != group.rank):
        return
    with torch._C._DisableTorchDispatch():
        found = any(tensor.is_floating_point() and bool(tensor.detach().isnan().any()) for tensor in sent)
    if found:
        dispatch.state.failure = AssertFailure(dispatch, stream, stream.epoch, note=NAN.format(name=name))


def stream_of(dispatch: Dispatch, group: Group, device: int, asynchronous: bool) -> Stream | None:
    """The stream on which a collective runs; None for one of gloo."""
    if device < 0 or not group.nccl:
        return None
    groups: Groups = dispatch.state.groups
    if groups.journeys.begun and not (CALLS.depth and goes_on(group)):
        groups.journeys.finish()
    if device not in group.shared.connected:
        groups.connect(group, device)
    if group.shared.in_flight:
        group.shared.line_up(CALLS.batch, collective=True)
    return groups.stream(group.shared, device, asynchronous)


@contextmanager
def meeting(dispatch: Dispatch, asked: Asked) -> Iterator[int]:
    """Inside it every rank of the group makes the same call; yields the number of the program's line.

    On a stream nothing starts before every rank is ready. Where there is none the data travel through the host, which
    waits, and the ranks leave together.
    """
    state, groups, machine = dispatch.state, dispatch.state.groups, dispatch.machine
    group, call, row, stream, device, size, timeout = asked
    host, site = state.local.host, state.sites.caller().site
    if stream is not None:
        ready_ns = machine.ready_ns(host, stream, row.name)
    else:
        if device >= 0:
            machine.synchronize_stream(host, state.local.streams[device], row.name, site)
            host.advance(2 * state.device(device).cost.copy_ns(size, device, CPU, True))
        ready_ns = host.now_ns
    with groups.meeting(group, call, ready_ns, site, timeout) as last_ns:
        if stream is not None and not group.met:
            groups.introduce(group, stream.device)
        if state.strikes is not None:
            transferring(dispatch, row.name)
        yield site
    group.meetings += 1
    machine.meet(host, stream, row, last_ns, group.meetings, site)


def transferring(dispatch: Dispatch, name: str) -> None:
    """Data are about to move: this rank may die now, by a fault on purpose, and leave the others in the middle."""
    if dispatch.state.strikes is not None:
        dispatch.state.strikes.strike("transfer", name)


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def place(dispatch: Dispatch, group: Group, call: Call, tensors: Iterable[Tensor], *, scattered: bool = False) -> Group:
    """The half of a group for a call's tensors; the call gets their device, and arguments with what carries it.

    Messages may be `scattered`: they go as they lie in memory (`check_gpu_single_tensor` of ProcessGroupNCCL.cpp).
    """
    call.device = _device(dispatch, group, tensors, scattered)
    if call.device < 0:
        group = group.of_device(call.device)
    if group.router is not None:
        call.args, call.kwargs = group.routed(call.plan.names, call.args, call.kwargs)
    return group


def _device(dispatch: Dispatch, group: Group, tensors: Iterable[Tensor], scattered: bool) -> int:
    """The device of a collective's tensors; raises NCCL's errors for tensors that it does not take."""
    device: int | None = None
    floating = []
    for tensor in tensors:
        found = tag_of(tensor).device
        if found == FLOATING:
            floating.append(tensor)
        elif found == CPU and not group.takes_cpu:
            raise RuntimeError("No backend type associated with device type cpu")
        elif device is not None and found != device:
            raise RuntimeError("Tensor list input to scatter/gather must match number of collective participants")
        else:
            device = found
        if found >= 0 and group.nccl:
            if tensor.is_sparse:  # ProcessGroupNCCL::allreduce_sparse; other collectives have no kernel for them
                raise RuntimeError(
                    "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
                )
            if not scattered and tensor.layout is torch.strided and not (tensor.is_contiguous() or is_dense(tensor)):
                raise ValueError("Tensors must be contiguous")
    if device is None:
        device = _unnamed(dispatch, group) if group.nccl and not group.takes_cpu else CPU
    if device >= 0:
        for tensor in floating:
            dispatch.tag(tensor, device)
    return device


def _unnamed(dispatch: Dispatch, group: Group) -> int:
    """The device of a collective whose tensors C++ made (DDP's buckets, a barrier): the one that the group uses.

    Before PyTorch 2.8, a group that has used none guesses one by its rank. Source: `ProcessGroupNCCL::barrier`.
    """
    current: int = dispatch.local.device
    if not group.connected:
        return current if VERSION >= GUESSED_UNTIL else group.ranks[group.rank] % torch.cuda.device_count()
    return current if current in group.connected else min(group.connected)


def is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def _tensors(value: object) -> list[Tensor]:
    """The tensors of one argument."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, (list, tuple)) else []


def _answer(func: OpOverload, written: object) -> object:
    """What the c10d operator `func` returns that has written `written`: that and a Work, or a Work alone."""
    work = finished(_tensors(written))
    return work if len(func._schema.returns) == 1 else (written, work)


def _values(
    dispatch: Dispatch, group: Group, call: Call, reduces: Reduces, types: set[torch.dtype], copied: bool = False
) -> object:
    """Run it on gloo to its end; an average comes here as a sum, to be divided, a premultiplied sum as a plain one."""
    name, func, args = call.plan.name, call.plan.func, call.args
    if name == TO_ROOT and not copied and _keeps_its_own(group, call.named()):
        with torch._C._DisableTorchDispatch():
            copies = each(args[0], torch.clone)
        _values(dispatch, group, call.but(args=(copies, *args[1:])), reduces, types, copied=True)
        return _answer(func, args[0])
    shape = COLLECTIVES[name]
    if group.nccl:
        if types & CONVERTED:
            args = each(args, carried)
        if name in FLAT:
            args = (*(tensor.view(-1) for tensor in args[:2]), *args[2:])
    if reduces.factor is not None:
        with torch._C._DisableTorchDispatch():
            args = multiplied(args, shape.reads, shape.writes, reduces.factor)
    if group.alone:  # the backend's own Work has no result, which the reducer of DDP asks for
        dispatch.compute(call.but(args=args))
        return _answer(func, args[shape.writes])
    if group.is_partial or name in COMPOSED:
        named = call.but(args=args).named()
    if group.is_partial:
        voices = played.voices(dispatch.state.groups, group, name)
        played.write(voices, name, named, Reduces(reduces.operation).name)
        out = _answer(func, args[shape.writes])
    elif group.nccl and name in COMPOSED and is_composed(name, named):
        with torch._C._DisableTorchDispatch():
            out = composed(name, group.carrier, group.rank, reduces.operation, named)
    else:
        lent = each(args, dispatch.state.groups.lending.lend)
        made = dispatch.compute(call.but(args=lent))
        dist.Work.unbox(made[-1] if isinstance(made, (tuple, list)) else made).wait()
        out = _answer(func, args[shape.writes])
    if name in REDUCING and torch.bool in types:
        with torch._C._DisableTorchDispatch():
            each(args[shape.writes], truth)
    if reduces.mean:
        with torch._C._DisableTorchDispatch():
            for tensor in _tensors(args[shape.writes]):
                divided(tensor.detach(), group.size)
    return out


def _replayed(dispatch: Dispatch, reduces: Reduces, call: Call) -> object:
    """A captured collective in a graph's replay, in which the other ranks' graphs take part."""
    group = dispatch.state.groups.of(call.named()["process_group"]).of_device(call.device)
    args, kwargs = group.routed(call.plan.names, call.args, call.kwargs)
    return _values(dispatch, group, call.but(args=args, kwargs=kwargs), reduces, set(map(TYPE, tensors_in(args))))


def submit(
    dispatch: Dispatch,
    stream: Stream,
    row: Signature,
    size_bytes: int,
    touched: tuple[list[Tensor], list[Tensor]],
    site: int,
) -> None:
    """Queue this rank's part of a collective; `stream` is ready when every rank is."""
    state = dispatch.state
    if state.groups.shelf:
        state.groups.clear_shelf()
    state.machine.collective(state.local.host, stream, row, size_bytes, site)
    if state.machine.concurrent:
        state.order.touched(*touched, stream, site)
    else:
        state.order.unwatched(touched[1], stream)


def _hand_over(
    dispatch: Dispatch, asked: Asked, event: Event | None, tensors: tuple[Tensor, ...], how: tuple[bool, int, int]
) -> None:
    """Tell who waits: the Work that the caller gets, or, for C++ that calls collectives itself, we in its place.

    `how`: whether the host waits as well, at which line it was called, and when it begins on its stream.
    """
    groups: Groups = dispatch.state.groups
    if CALLS.depth:
        CALLS.queued = Queued(event, tensors=tensors)
        CALLS.queued.host, site, began_ns = how
        CALLS.queued.is_of(asked.group, asked.described.operation, site, asked.timeout, began_ns)
    elif event is not None and torch._C._current_autograd_node() is not None:
        # DistributedDataParallel's reducer, in a gradient's hook: its buckets are waited for when backward ends.
        groups.wait_when_backward_ends(event)
        for tensor in tensors if dispatch.state.history.enabled else ():
            dispatch.state.history.mark_tensor(tensor, "communication", BUCKET)
    elif event is not None:
        groups.wait(event)


HANDLERS: dict[str, Handler] = dict.fromkeys(COLLECTIVES, run)
"""Operators with handlers of their own."""
