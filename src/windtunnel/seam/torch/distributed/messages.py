"""Messages from one rank to another: values over gloo, matched, queued and refused as NCCL does it.

The sender's clock travels beside each message. NCCL compares neither sizes nor types: what does not fit hangs, or
arrives as something else.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from windtunnel.errors import UnsupportedError
from windtunnel.machine.stream import Event, Stream
from windtunnel.ranks.calls import Channel, Operation
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.distributed import known_values, played
from windtunnel.seam.torch.distributed.collectives import bytes_of, is_dense, place, transferring
from windtunnel.seam.torch.distributed.communicators import CLOCK_TAGS, Communicator, wire_tag
from windtunnel.seam.torch.distributed.described import message
from windtunnel.seam.torch.distributed.groups import NS, Group, Groups, Queued
from windtunnel.seam.torch.distributed.nodata import lacks_values, token, with_values
from windtunnel.seam.torch.distributed.to_itself import Half
from windtunnel.seam.torch.distributed.values import check, finished
from windtunnel.seam.torch.distributed.work import CALLS
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import CPU, VERSION
from windtunnel.trace.operation import Signature

Tensor = torch.Tensor

ANY_SOURCE = "ProcessGroupNCCL does not support recvAnysource"
EAGER_SHARES = (2, 8)
"""The version from which on a group that was given its device sends plain messages over its own communicator, and from
which on PyTorch warns of plain messages."""
LAZY = (
    "An unbatched P2P op (send/recv) was called on this ProcessGroup with size {size}.  In lazy initialization mode, "
    "this will result in a new 2-rank NCCL communicator to be created."
)
EAGER = (
    "[PG ID {number} PG GUID {name}({description}) Rank {rank}] An unbatched P2P op (send/recv) was called on this "
    "ProcessGroup with size {size}.  In eager initialization mode, unbatched P2P ops are treated as independent "
    "collective ops, and are thus serialized with all other ops on this ProcessGroup, including other P2P ops. "
    "To avoid serialization, either create additional independent ProcessGroups for the P2P ops or use batched P2P "
    "ops. You can squash this warning by setting the environment variable "
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING to false."
)
"""PyTorch's own warnings (`ProcessGroupNCCL::pointToPoint`), once each."""
SCATTERED = (
    "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source and "
    "destination tensors have the same contiguity format."
)
"""`check_gpu_single_tensor` (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
BYTES = frozenset({torch.uint8, torch.int8, torch.bool})
"""Types that may stand for any other: nothing is known of what they hold."""


class Message(NamedTuple):
    """A send or a receive that was posted; `communicator` and `stream` are None where gloo's own rules hold.

    `launch` is the number of the kernel that it goes with, `batch` the same for those that were batched, else 0.
    """

    group: Group
    kind: str
    peer: int
    tensors: Sequence[Tensor]
    operation: Operation
    channel: Channel
    device: int
    tag: int
    entry: int
    site: int
    batch: int
    launch: int
    posted_ns: int
    communicator: Communicator | None
    stream: Stream | None

    @property
    def size(self) -> int:
        return sum(map(bytes_of, self.tensors))

    @property
    def is_to_itself(self) -> bool:
        """Whether a rank sends it to itself, which NCCL does in a batch."""
        return bool(self.batch) and self.communicator is not None and self.peer == self.group.rank

    def next_tag(self) -> int:
        """The tag under which the next message of its kind travels to or from the same rank."""
        assert self.communicator is not None
        return _next_tag(self.group, self.communicator, self.kind, self.peer, self.size)

    def meet(self, dispatch: Dispatch, peer: int, ready_ns: int, begins_ns: int | None = None) -> Signature:
        """The other rank, `peer`, is ready for it; returns what rows call it."""
        call = self.group.message(f"nccl:{self.kind}", peer, self.channel.tag)
        host = dispatch.local.host
        dispatch.machine.meet(host, self.stream, call, ready_ns, self.launch, self.site, begins_ns)
        return call


class ReplayedMessage:
    """A captured message in the replays of its graph: posted where it was, waited for where its Work was."""

    def __init__(self, dispatch: Dispatch, message: Message) -> None:
        self._dispatch = dispatch
        self._message = message

    def post(self, call: Call) -> object:
        """Send or receive what one rank tells another now."""
        message, group = self._message, self._message.group
        args, kwargs = group.routed(call.plan.names, call.args, call.kwargs)
        args = (*args[:2], group.wire(message.peer), message.next_tag())
        out = _carried(self._dispatch, call.but(args=args, kwargs=kwargs))
        self._work = dist.Work.unbox(out)
        return out

    def wait(self) -> None:
        """Wait until it has arrived."""
        self._work.wait()


def send(dispatch: Dispatch, call: Call) -> object:
    """c10d::send: the sender's clock goes with the message."""
    groups: Groups = dispatch.state.groups
    tensors, boxed, peer, tag = call.args
    group = groups.of(boxed)
    if group is None:
        return dispatch.compute(call.but(device=CPU))
    group = place(dispatch, group, call, call.tensors(), scattered=True)
    played.require_played(groups, group, peer)
    wire = group.wire(peer)
    sent = _posted(dispatch, group, call.plan.name, tensors, (call.device, peer, tag))
    if sent.is_to_itself:
        return _to_itself(dispatch, sent)
    waits = _captured(dispatch, sent)
    timeout = group.timeout(sent.posted_ns)
    with groups.watch.waiting(sent.entry, posts=True):
        out = _carried(dispatch, call.but(args=(*call.args[:2], wire, sent.tag), device=sent.device))
        work = dist.Work.unbox(out)
        with torch._C._DisableTorchDispatch():
            told = known_values.numbers(dispatch.state, tensors) if lacks_values(tensors) else known_values.NOTHING_SENT
            clock = torch.tensor([_begins_ns(dispatch, sent), _type_number(tensors), *told], device="cpu")
            ticket = group.carrier.send([clock], wire, sent.tag + CLOCK_TAGS)
    event = None if sent.stream is None else _queue(dispatch, sent, 0)
    if event is None:
        sent.meet(dispatch, peer, 0)

    def finish(timeout: timedelta | None) -> Event | None:
        with groups.watch.waiting(sent.entry):
            work.wait() if timeout is None else work.wait(timeout)
            ticket.wait()
        waits()
        return event

    return _pending(groups, out, Queued(None, finish, message=tensors), sent, timeout)


def recv(dispatch: Dispatch, call: Call) -> Result:
    """c10d::recv_ and c10d::recv_any_source_: it ends when the sender's message, which has its clock, has arrived."""
    groups: Groups = dispatch.state.groups
    tensors, boxed = call.args[:2]
    group = groups.of(boxed)
    if group is None:
        return dispatch.compute(call.but(device=CPU))
    source = call.args[2] if len(call.args) > 3 else -1
    group = place(dispatch, group, call, call.tensors(), scattered=True)
    played.require_played(groups, group, source)
    wire = group.wire(source)
    awaited = _posted(dispatch, group, call.plan.name, tensors, (call.device, source, call.args[-1]))
    if awaited.is_to_itself:
        return _to_itself(dispatch, awaited)
    waits = _captured(dispatch, awaited)
    allowed = group.timeout(awaited.posted_ns)
    limit_ms = group.limit_ms(allowed)
    completion = None if awaited.stream is None else group.numbered("recv")
    clock_tag = awaited.tag + CLOCK_TAGS
    with groups.watch.waiting(awaited.entry, posts=True):
        peers = (wire,) if len(call.args) > 3 else ()
        out = _carried(dispatch, call.but(args=(*call.args[:2], *peers, awaited.tag), device=awaited.device))
        work = dist.Work.unbox(out)
        with torch._C._DisableTorchDispatch():
            clock = torch.zeros(2 + len(known_values.NOTHING_SENT), dtype=torch.int64, device="cpu")
            # Asked for at once where the sender is known: the sender's `wait` may depend on it.
            ticket = group.carrier.recv([clock], wire, clock_tag) if source >= 0 else None

    def finish(timeout: timedelta | None) -> Event | None:
        with groups.watch.waiting(awaited.entry):
            work.wait() if timeout is None else work.wait(timeout)
            with torch._C._DisableTorchDispatch():
                (ticket or group.carrier.recv([clock], work._source_rank(), clock_tag)).wait()
                sent_ns, type_number, *told = clock.tolist()
            if lacks_values(tensors):
                known_values.received(dispatch.state, tensors, told)
            if awaited.stream is None:
                awaited.meet(dispatch, source if source >= 0 else work._source_rank(), sent_ns)
                return None
            if type_number not in (0, _type_number(tensors)) and _type_number(tensors):
                raise groups.watch.differing(group.name, awaited.operation, dispatch.state.site())
            _in_time(groups, awaited, sent_ns, limit_ms)
        waits()
        event = _queue(dispatch, awaited, sent_ns)
        if completion is not None:
            completion.ended(sent_ns, awaited.stream.ready_ns)
        return event

    return _pending(groups, out, Queued(None, finish, message=tensors), awaited, allowed)


def _to_itself(dispatch: Dispatch, mine: Message) -> object:
    """A batched message of a rank to itself: the half that is posted second copies the values.

    Raises:
        UnsupportedError: it is captured in a graph.
    """
    if dispatch.recorder is not None:
        raise UnsupportedError("a CUDA graph with a message of a rank to itself")
    state, groups, kind, tensors = dispatch.state, dispatch.state.groups, mine.kind, mine.tensors
    valueless = lacks_values(tensors)
    told = known_values.numbers(state, tensors) if valueless and kind == "send" else ()
    half = Half(kind, mine.tag, tensors, _type_number(tensors), _begins_ns(dispatch, mine), told)
    mine.group.shared.to_itself.post(half, not valueless)
    event = _queue(dispatch, mine, 0) if kind == "send" else None

    def finish(timeout: timedelta | None) -> Event | None:
        with groups.watch.waiting(mine.entry):
            other = half.wait()
        if event is not None:
            return event
        if valueless:
            known_values.received(state, tensors, list(other.told))
        if half.type_number and other.type_number not in (0, half.type_number):
            raise groups.watch.differing(mine.group.name, mine.operation, state.site())
        return _queue(dispatch, mine, other.begins_ns)

    made = Queued(None, finish, message=tensors)
    return _pending(groups, finished(tensors), made, mine, mine.group.timeout(mine.posted_ns))


def _captured(dispatch: Dispatch, message: Message) -> Callable[[], None]:
    """Tell a graph that is captured how its replays send the message; what is to be called where it is waited for."""
    recorder = dispatch.recorder
    if recorder is None or message.stream is None:
        return lambda: None
    replayed = ReplayedMessage(dispatch, message)
    recorder.again = replayed.post
    return lambda: recorder.then(replayed.wait)


def _type_number(tensors: Sequence[Tensor]) -> int:
    """What ranks compare of a message's type; 0 for bytes."""
    dtype = next((tensor.dtype for tensor in tensors), torch.uint8)
    return 0 if dtype in BYTES else zlib.crc32(str(dtype).encode())


def _in_time(groups: Groups, awaited: Message, sent_ns: int, limit_ms: int) -> None:
    """End what NCCL's watchdog ends.

    Raises:
        DistBackendError: the message came later than the receiver waits.
    """
    waited_ns = sent_ns - awaited.posted_ns
    if 0 < limit_ms * NS < waited_ns:
        group = awaited.group
        waits = {group.ranks[group.rank]: (-(-waited_ns // NS), limit_ms), awaited.channel.peer: (0, limit_ms)}
        raise groups.late(group, awaited.channel, awaited.operation, waits)


def _posted(
    dispatch: Dispatch, group: Group, name: str, tensors: Sequence[Tensor], where: tuple[int, int, int]
) -> Message:
    """Choose the communicator and write the message down; `where`: device, the other's number in the group, tag."""
    state, (device, peer, tag) = dispatch.state, where
    groups: Groups = state.groups
    site = state.site()
    if device >= 0:
        state.arrive()
    kind = "send" if name == "c10d::send" else "recv"
    communicator = stream = None
    batch, pair = CALLS.batch, False
    if device >= 0 and group.nccl:
        if peer < 0:
            raise NotImplementedError(ANY_SOURCE)
        check(name, list(tensors), [], group.size, "")
        if not all(map(is_dense, tensors)):
            _say(groups, group, SCATTERED, "check_gpu_single_tensor")
        communicator = _communicator(dispatch, group, peer, device)
        pair = communicator is not group.shared
        stream = groups.stream(communicator, device, True)
        if not batch or communicator.batch != batch:
            communicator.begins_ns = dispatch.machine.ready_ns(dispatch.local.host, stream, f"nccl:{kind}")
        tag = _next_tag(group, communicator, kind, peer, sum(map(bytes_of, tensors)))
    other = group.ranks[peer] if peer >= 0 else -1
    channel = Channel(group.name, kind, other, 0 if communicator else tag, pair)
    operation = message(name, tensors)
    entry = groups.watch.called(channel, operation, site)
    host = dispatch.local.host
    launch = batch or dispatch.machine.number(host)
    dispatch.machine.post(host, stream, group.message(f"nccl:{kind}", peer, channel.tag), launch, site)
    transferring(dispatch, name)
    return Message(
        group, kind, peer, tensors, operation, channel, device, tag, entry, site, batch, launch, host.now_ns,
        communicator, stream,
    )  # fmt: skip


def _next_tag(group: Group, communicator: Communicator, kind: str, peer: int, size: int) -> int:
    """The tag under which a communicator's next message of a kind travels to or from a rank."""
    communicator.counts[kind, peer] += 1
    return wire_tag(communicator is not group.shared, communicator.counts[kind, peer], size)


def _communicator(dispatch: Dispatch, group: Group, peer: int, device: int) -> Communicator:
    """The communicator that a message uses, made if need be, with what is in line before the message done."""
    groups: Groups = dispatch.state.groups
    eager = group.eager and VERSION >= EAGER_SHARES
    if not CALLS.batch:
        _warn(groups, group, eager)
    pair = not CALLS.batch and not eager
    found = group.pairs.setdefault(peer, Communicator(peer)) if pair else group.shared
    groups.connect(group, device, found)
    if not pair:
        groups.joins.arrive(found)
    found.line_up(CALLS.batch)
    return found


def _warn(groups: Groups, group: Group, eager: bool) -> None:
    """PyTorch's warning on plain messages."""
    text = EAGER if eager else LAZY
    if VERSION >= EAGER_SHARES and not group.alone and not (eager and not group.settings.warns_of_line):
        _say(groups, group, text, "operator()")


def _say(groups: Groups, group: Group, text: str, function: str) -> None:
    """A warning once, as C++ writes it."""
    if text in groups.warned:
        return
    groups.warned.add(text)
    said = text.format(
        number=getattr(group.lender.inner, "uid", 0), name=group.name, description=group.description, rank=group.rank,
        size=group.size,
    )  # fmt: skip
    now = datetime.now()
    prefix = f"[rank{group.ranks[group.rank]}]:[W{now:%m%d %H:%M:%S}.{now.microsecond * 1000:09d} ProcessGroupNCCL.cpp]"
    sys.stderr.write(f"{prefix} Warning: {said} (function {function})\n")  # at once: ranks share it
    sys.stderr.flush()


def _carried(dispatch: Dispatch, call: Call) -> Result:
    """Send or receive what one rank tells another; where that has no values, a token."""
    if lacks_values(call.args):
        return dispatch.compute(call.but(args=(token(), *call.args[1:]), device=CPU))
    with torch._C._DisableTorchDispatch():
        lying = [one if is_dense(one) else one.detach().as_strided((one.numel(),), (1,)) for one in call.args[0]]
    with with_values(dispatch.local):
        return dispatch.compute(call.but(args=(lying, *call.args[1:])))


def _begins_ns(dispatch: Dispatch, sent: Message) -> int:
    """When a message may begin on this rank."""
    if sent.communicator is None:
        return dispatch.local.host.now_ns
    return sent.communicator.begins_ns


def _queue(dispatch: Dispatch, queued: Message, sent_ns: int) -> Event:
    """Queue the message in the machine, not before the sender is ready; returns the event after it.

    The messages of a batch are one kernel, in which they run beside one another.
    """
    groups: Groups = dispatch.state.groups
    communicator, stream = queued.communicator, queued.stream
    assert communicator is not None
    assert stream is not None
    site, host = queued.site, dispatch.local.host
    launched = bool(queued.batch) and communicator.batch == queued.batch
    ends_ns = stream.ready_ns
    call = queued.meet(dispatch, queued.peer, sent_ns, communicator.begins_ns if launched else None)
    dispatch.machine.collective(host, stream, call, queued.size, site, launched)
    communicator.batch = queued.batch
    if launched:
        stream.ready_ns = max(stream.ready_ns, ends_ns)
    if queued.kind == "recv" and dispatch.machine.concurrent:
        dispatch.state.order.touched([], list(queued.tensors), stream, site)
    elif queued.kind == "recv":
        dispatch.state.order.unwatched(queued.tensors, stream)
    if queued.kind == "send":
        queued.group.numbered("send").ended(communicator.begins_ns, stream.ready_ns)
    return groups.mark(stream, 0)


def _pending(groups: Groups, out: Result, queued: Queued, posted: Message, timeout: timedelta | None) -> object:
    """Hand the message to the caller's Work, or wait for it where the caller is C++."""
    if not CALLS.depth:
        queued.settle()
        return out
    CALLS.queued = queued
    queued.timeout, queued.batch, queued.size = timeout, posted.batch, posted.size
    queued.sent_to = posted.peer if posted.kind == "send" else -1
    if posted.communicator is not None:
        queued.line = posted.communicator.in_flight
        queued.line.append(queued)
    return out


HANDLERS: dict[str, Handler] = {"c10d::send": send, "c10d::recv_": recv, "c10d::recv_any_source_": recv}
"""Operators with handlers of their own."""
