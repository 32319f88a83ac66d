"""Process groups as the emulation knows them, and how their ranks meet: they compare calls and agree on the time."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from windtunnel.gpus import versions
from windtunnel.machine.order import knows
from windtunnel.machine.stream import Event, Stream
from windtunnel.ranks.calls import ON_CPU, Channel, Operation
from windtunnel.ranks.calls import State as Progress
from windtunnel.seam.cuda_driver import FIRST_PCI_BUS
from windtunnel.seam.torch.distributed import played
from windtunnel.seam.torch.distributed.allowance import Allowance
from windtunnel.seam.torch.distributed.communicators import ALL, Communicator, InFlight, Joins, Party
from windtunnel.seam.torch.distributed.completions import Completion, Completions, Numbers
from windtunnel.seam.torch.distributed.described import MASK, Described, Descriptions, Place
from windtunnel.seam.torch.distributed.lending import Lender, Lending
from windtunnel.seam.torch.distributed.nccl import NCCL_VERSION
from windtunnel.seam.torch.distributed.nccl_settings import DEFAULTS, Settings
from windtunnel.seam.torch.distributed.replicas import Replicas
from windtunnel.seam.torch.distributed.skew import Skew
from windtunnel.seam.torch.distributed.slate import Slate
from windtunnel.seam.torch.distributed.under_way import Journeys, UnderWay
from windtunnel.seam.torch.distributed.watch import Watch
from windtunnel.seam.torch.state.ranks import spread_of
from windtunnel.seam.torch.tags import tag_of
from windtunnel.trace.operation import Signature

if TYPE_CHECKING:
    from windtunnel.seam.torch.plans.arguments import Arguments, Keywords
    from windtunnel.seam.torch.state.ranks import Carrier
    from windtunnel.seam.torch.state.state import State
    from windtunnel.seam.torch.tags import Tag

DUPLICATE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for "
    "details), NCCL version {version}\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank {rank} and rank {other} both on CUDA device {device:x}"
)
"""What `torch.distributed.DistBackendError` says (`C10D_NCCL_CHECK` of torch/csrc/distributed/c10d/NCCLUtils.hpp) of
two ranks with the same host and the same GPU (`initTransportsRank` of NCCL's src/init.cc); the device is the number of
its place on the PCI bus."""
SHARING = "windtunnel: give each rank a GPU of its own, or run with --share-gpus (share_gpus=True in Python)"

CPU_DEVICE = torch.device("cpu")
MILLISECOND = timedelta(milliseconds=1)
NS = 1_000_000
"""Nanoseconds in one."""
ABORTED = "NCCL communicator was aborted on rank {rank}. "
"""What `NCCLComm::getNcclComm` says (torch/csrc/distributed/c10d/NCCLUtils.cpp)."""


class Group:
    """A process group: `carrier` is the gloo backend that moves its values.

    `ranks` are its members' ranks in the job. `shared` is the communicator of them all, `pairs` has those of this rank
    and one other, by that one's number in the group; a group that is `eager` has the shared one from the beginning.

    A process group of two backends ("cpu:gloo,cuda:nccl") is two of these, since the calls of one backend have no order
    among those of the other: `host` is the one of CPU tensors, and `router`, a process group that has NCCL's backend
    for the CPU, takes to its carrier what C++ sees on the CPU.

    `nccl` tells whether emulated tensors go to NCCL, `takes_cpu` whether CPU tensors have a backend at all, `alone`
    whether this process only plays one of the ranks: the others, in PyTorch's backend "fake", are always ready.
    `settings` are what NCCL's environment variables said when it was made. `present` are the places of the members that
    are played by processes, all of them except in a cluster that few processes play.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        ranks: Sequence[int],
        carrier: Lender,
        nccl: bool,
        takes_cpu: bool,
        alone: bool = False,
        settings: Settings = DEFAULTS,
        present: Sequence[int] | None = None,
    ) -> None:
        self.name: str = process_group.group_name
        self.description: str = process_group.group_desc
        self.host: Group | None = None
        self.router: dist.ProcessGroup | None = None
        self.lock = threading.RLock()
        self.last: UnderWay | None = None  # the latest call that a thread of its own carries
        self.ranks = tuple(ranks)
        self.channel = Channel(self.name)
        self.size: int = process_group.size()
        self.rank: int = process_group.rank()
        self.carrier: Carrier = carrier
        self.lender = carrier
        self.nccl = nccl
        self.takes_cpu = takes_cpu
        self.alone = alone
        self.settings, self._times_out = settings, settings.times_out
        self.present = list(range(self.size)) if present is None else list(present)
        self.is_partial = len(self.present) < self.size
        self.spread = spread_of(self.ranks)
        self.met_ranks = tuple(self.ranks[place] for place in self.present)
        self.place: Place = self.rank, self.size, tuple(self.present)
        self.shared = Communicator()
        self.pairs: dict[int, Communicator] = {}
        self.eager, self.met = False, False
        self.single = len(self.place[2]) == 1 or alone  # there is nobody to meet
        self.allowance: Allowance | None = getattr(carrier.inner, "_wt_allowance", None)  # None for other backends
        self._calls: dict[str, Signature] = {}
        self.numbers = Numbers()
        self.meetings = 0
        self.completions: Completions | None = None
        self._slates: list[Slate] = []  # those that no thread is using

    def wire(self, place: int) -> int:
        """The number that gloo has for a member of the group."""
        return self.present.index(place) if self.is_partial and place >= 0 else place

    @property
    def connected(self) -> dict[int, int]:
        """The devices that the shared communicator is on, and its bytes there."""
        return self.shared.connected

    def party(self, communicator: Communicator) -> Party | None:
        """Who makes a communicator of it; None where no other rank has to come."""
        store = getattr(self.lender.inner, "_wt_meeting", None)
        if self.single or store is None or communicator.peer == self.rank:
            return None
        pair = communicator.peer != ALL
        ranks = sorted({self.rank, communicator.peer}) if pair else self.present
        who, number = "-".join(map(str, ranks)) if pair else "all", len(communicator.connected)
        names = {rank: f"joined/{who}/{number}/{rank}" for rank in ranks}
        mine = names.pop(self.rank)
        channel = Channel(self.name, "join", self.ranks[communicator.peer] if pair else -1)
        return Party(store, mine, list(names.values()), channel)

    @property
    def halves(self) -> list[Group]:
        """It, and what it is of CPU tensors if they have a backend of their own."""
        return [self] if self.host is None else [self, self.host]

    def of_device(self, device: int) -> Group:
        """The half that takes tensors of a device, or of the CPU."""
        return self.host if device < 0 and self.host is not None else self

    def divide(self, process_group: dist.ProcessGroup, of_cuda: c10d.Backend, of_cpu: Carrier) -> Group:
        """CPU tensors have a backend of their own: their half of the group."""
        router = dist.ProcessGroup(c10d.HashStore(), self.rank, self.size)
        router._register_backend(CPU_DEVICE, dist.ProcessGroup.BackendType.GLOO, of_cuda)
        router._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        c10d._register_process_group(self._route, router)  # type: ignore[arg-type]  # a name of its own type
        self.router = router
        carrier = Lender(of_cpu, self.lender.lending)
        self.host = Group(process_group, self.ranks, carrier, False, True, present=self.present)
        self.host.name = self.name + ON_CPU
        self.host.channel = Channel(self.host.name)
        return self.host

    def routed(self, names: Sequence[str], args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        """The arguments of a collective's operator, `names` those of its parameters, with the group that carries it."""
        router = self.router
        if router is None:
            return args, kwargs
        boxed = router.boxed()

        def reroute(name: str, value: object) -> object:
            if name == "process_group":
                return boxed
            if name == "group_name":
                return self._route if isinstance(value, str) else boxed
            return value

        return (
            tuple(map(reroute, names, args)),
            {name: reroute(name, value) for name, value in kwargs.items()},
        )

    def end(self) -> None:
        """It was destroyed."""
        if self.router is not None:
            c10d._unregister_process_group(self._route)  # type: ignore[arg-type]
            self.router = None

    @property
    def _route(self) -> str:
        """The name by which functional collectives find `router`."""
        return f"{self.name} on CUDA"

    def is_aborted(self) -> bool:
        """Whether NCCL's communicators of it were given up."""
        return bool(getattr(self.lender.inner, "_wt_aborted", False))

    def collective(self, name: str) -> Signature:
        """A collective of its ranks, as rows name it."""
        call = self._calls.get(name)
        if call is None:
            call = Signature(name, detail=(("ranks", self.size), ("group", self.name), *self.spread.detail()))
            self._calls[name] = call
        return call

    def message(self, name: str, peer: int, tag: int) -> Signature:
        """A message to or from `peer`, a rank of the group (-1 for any), as rows name it: by the job's ranks."""
        other = self.ranks[peer] if peer >= 0 else -1
        spread = spread_of(sorted({self.ranks[self.rank], max(other, self.ranks[0])})).detail()
        return Signature(name, detail=(("ranks", 2), ("group", self.name), ("peer", other), ("tag", tag), *spread))

    def timeout(self, now_ns: int) -> timedelta | None:
        """How long NCCL lets a call take that is made now; None for a group of another backend."""
        return None if self.allowance is None else self.allowance.timeout(now_ns)

    def limit_ms(self, timeout: timedelta | None) -> int:
        """A call's timeout in milliseconds, 0 where nothing comes of it when it takes longer."""
        return int(timeout / MILLISECOND) if timeout is not None and self._times_out else 0

    def called(self, name: str, began_ns: int, end_ns: int) -> None:
        """A collective was queued that the device works on from `began_ns` to `end_ns`."""
        if self.allowance is not None and self.allowance.added:
            self.allowance.called(end_ns)
        self.numbered(name).ended(began_ns, end_ns)

    def numbered(self, name: str) -> Completion:
        """A call is made: it has a number, and the completion hook will be told of it."""
        found = self.numbers.next(name)
        if self.completions is not None and found is not self.numbers.together:
            self.completions.pending.append(found)
        return found

    def coalesced(self) -> None:
        """`_end_coalescing`: the completion hook will be told once of all calls since `_start_coalescing`."""
        found = self.numbers.end()
        if self.completions is not None and found is not None:
            self.completions.pending.append(found)

    def meet(self, mine: Sequence[int]) -> list[tuple[int, ...]]:
        """Each rank's numbers: one exchange of all ranks, which bring equally many."""
        slate = self._slates.pop() if self._slates else Slate(len(self.present), len(mine))
        with torch._C._DisableTorchDispatch():
            slate.pack_into(slate.mine, 0, *mine)
            self.lender.inner._allgather_base(slate.found_tensor, slate.mine_tensor).wait()
            found = list(slate.iter_unpack(slate.found))
        self._slates.append(slate)  # not where it failed: gloo may still write into it
        return found

    def release(self) -> None:
        """Let go of what is kept for the next meeting; gloo may have it for a moment longer."""
        for slate in self._slates:
            self.lender.remember(slate.mine_tensor, slate.found_tensor)
        self._slates.clear()


class Queued:
    """A collective in the machine: the event after it, and what else its Work's `wait` must do.

    `tensors` are kept until somebody waits, as ProcessGroupNCCL's TensorShelf does: memory that a collective is still
    at work on goes to nobody else. `site` and `call` are the line and the operation, `group` whose it is, `began_ns`
    when it begins on the device, `timeout` how long it may take, `waited` whether somebody waited or took its future.

    Of a message, `finish` waits for the other rank and gives the event, `message` is its tensors, which the Work keeps
    for its own life (`outputs_` of ProcessGroupNCCL::pointToPoint), `sent_to` the receiver's number in the group, -1
    for a receive, `batch` the one that it belongs to, `line` what else is in flight on its communicator.
    """

    def __init__(
        self,
        event: Event | None,
        finish: Callable[[timedelta | None], Event | None] | None = None,
        tensors: Sequence[object] = (),
        message: Sequence[object] = (),
    ) -> None:
        self.event = event
        self.finish = finish
        self.tensors = tensors
        self.message = message
        self.sent_to, self.batch, self.size = -1, 0, 0
        self.line: list[InFlight] = []
        self.site, self.began_ns = 0, 0
        self.call: Operation | None = None
        self.group: Group | None = None
        self.timeout: timedelta | None = None
        self.waited = False
        self.host = False
        self.under_way: UnderWay | None = None  # until it is on its stream

    def is_of(self, group: Group, call: Operation, site: int, timeout: timedelta | None, began_ns: int = 0) -> None:
        """Whose it is, what was called and where, how long it may take, and when it began if it is on its stream."""
        self.group, self.call, self.site, self.timeout = group, call, site, timeout
        self.began_ns = began_ns

    def let_go(self) -> None:
        """NCCL's watchdog has seen its end: nobody is at work any more on memory that only it has kept."""
        tags = list(dict.fromkeys(tag_of(tensor) for tensor in self.tensors if isinstance(tensor, torch.Tensor)))
        self.tensors = ()
        while tags:
            tag = tags.pop()
            if tag.accesses is not None and self.event is not None and sys.getrefcount(tag) == 2:  # held here alone
                tag.accesses.complete(self.event.order)

    def settle(self, timeout: timedelta | None = None) -> None:
        """Wait for the other rank of a message."""
        if self.finish is not None:
            self.event, self.finish = self.finish(timeout), None
            if self in self.line:
                self.line.remove(self)


class DeviceFuture(torch.futures.Future[object]):
    """The future of a collective: it has its value, which is ready on the device after an event."""

    def __init__(self, value: object, event: Event) -> None:
        super().__init__()
        self._wt_event = event
        self.set_result(value)

    def arrive(self) -> None:
        """Make the current stream wait."""
        raise NotImplementedError


class Groups:
    """The process groups of this process, by name; groups of an ended emulation are forgotten with it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.by_name: dict[str, Group] = {}
        self.backends: list[object] = []
        self.pending: dict[int, tuple[weakref.ref[Tag], Queued]] = {}  # functional ones, by the identity of their tags
        self.shelf: list[Queued] = []  # collectives that nobody waited for, with their tensors
        self.future: type[DeviceFuture]  # the class of their futures
        self.descriptions = Descriptions()
        self.fold = played.read()
        played_here = 1 if self.fold is None else len(self.fold.played)
        self.watch = Watch(state, state.stuck_after_s * max(1, played_here / (os.cpu_count() or 1)))
        self.joins = Joins(self.watch)
        self.journeys = Journeys(self.watch, state)
        self.lending = Lending()
        self.skew = Skew()
        self.replicas = Replicas(state, self.watch)
        self.warned: set[str] = set()
        self.unwaited: list[tuple[Event, int, str]] = []  # site and operation of each Work dropped without a wait

    def met(self, ranks: Sequence[int]) -> Sequence[int]:
        """Those ranks of a group that are played by processes."""
        return ranks if self.fold is None else [ranks[place] for place in self.fold.present(ranks)]

    def add(self, group: Group) -> None:
        """Remember a group that was just made."""
        if not self.by_name:
            atexit.register(self._ends)
        self.by_name[group.name] = group
        self.watch.lenient |= group.nccl and not group.settings.tears_down
        self.state.ranks.joined(group)

    def _ends(self) -> None:
        """Python ends: what fails now has been said, and nobody is left to catch it."""
        with suppress(dist.DistBackendError):
            self.settle()

    def settle(self, name: str | None = None) -> None:
        """Wait until gloo's threads hold nothing of a group, or of all of them."""
        self.journeys.finish(everybody=True)
        for group in self._named(name):
            for half in group.halves:
                half.release()
        self.lending.settle()

    def _named(self, name: str | None) -> list[Group]:
        """A group that is there still, or all of them."""
        return list(self.by_name.values()) if name is None else list(filter(None, [self.by_name.get(name)]))

    def close(self, name: str | None) -> None:
        """A group, or all of them, was destroyed: the memory of its communicators comes back."""
        self.settle(name)
        if name is None:
            self.tell()
            self.watch.close()
        for group in self._named(name):
            for communicator in (group.shared, *group.pairs.values()):
                for device, size in communicator.connected.items():
                    self.state.device(device).driver.occupied_bytes -= size
                communicator.connected.clear()
            group.end()
            del self.by_name[group.name]
            self.backends = [backend for backend in self.backends if backend is not group.lender.inner]

    def tell(self) -> None:
        """Note what is known at the end: for whom this rank waited, and what nobody waited for."""
        state = self.state
        self.skew.tell(state.ranks.rank, state.notes.note)
        unwaited, self.unwaited = self.unwaited, []
        ended = self.watch.failed or getattr(sys, "last_value", None) is not None  # the waits were not reached
        for event, site, name in unwaited:
            if not ended and not self._is_known(event):
                state.notes.note("wait-missing", site, operation=name, rank=state.ranks.rank)

    def _is_known(self, event: Event) -> bool:
        """Whether the host or the current stream is ordered after an event."""
        stream = event.stream
        if stream is None:
            return True
        agent, epoch = stream.agent, event.order.get(stream.agent, 0)
        return self.state.machine.host_knows(agent, epoch) or knows(self.current(stream.device).order, agent, epoch)

    @property
    def line(self) -> str:
        """The program's line that is running."""
        return str(self.state.machine.trace.sites[self.state.site()])

    def of(self, boxed: str | torch.ScriptObject) -> Group | None:
        """The group behind the argument of a c10d operator; None for one that was made elsewhere."""
        name = boxed if isinstance(boxed, str) else dist.ProcessGroup.unbox(boxed).group_name
        return self.by_name.get(name)

    # ------------------------------------------------------------------ streams and time

    def connect(self, group: Group, device: int, communicator: Communicator | None = None) -> None:
        """The first use of a communicator on a device makes it, while the host waits; the group's unless one is given.

        Raises:
            DistBackendError: the connection was lost because another rank ended.
        """
        communicator = communicator or group.shared
        if device in communicator.connected:
            return
        state = self.state
        self.joins.join(communicator, group.party(communicator), state.site())
        state.memory.create_context(state.device(device))
        found = state.device(device)
        ranks = group.size if communicator is group.shared else 2
        communicator.connected[device] = versions.communicator_bytes(found.gpu, ranks)
        found.driver.occupied_bytes += communicator.connected[device]
        found.used.discard("NCCL")  # each group has a communicator of its own
        state.machine.first_use(state.local.host, found, "collective")

    def current(self, device: int) -> Stream:
        """The current stream of a device; in a backward function, the one of its forward."""
        return self.state.order.current(device, self.state.local.streams[device])

    def stream(self, communicator: Communicator, device: int, asynchronous: bool) -> Stream:
        """Where an operation runs: on its communicator's stream after the current one, or on the current stream."""
        state = self.state
        current = state.order.current(device, state.local.streams[device])
        if not asynchronous:
            return current
        own = communicator.streams.get(device)
        if own is None:
            own = communicator.streams[device] = state.new_stream(device, 0)
        state.machine.barrier(state.local.host, current, own)
        return own

    @contextmanager
    def meeting(
        self, group: Group, call: Described, ready_ns: int, site: int, timeout: timedelta | None,
        made: tuple[int, int] | None = None,
    ) -> Iterator[int]:  # fmt: skip
        """Inside it every rank of the group makes the same call; yields when the last of them is ready for it.

        A call that is under way was `made` before: its entry in the ledger, and when the host made it.

        Raises:
            DistBackendError: the ranks' calls differ, or one of them has ended.
        """
        if group.is_aborted():
            raise dist.DistBackendError(ABORTED.format(rank=group.rank))
        if group.is_partial:
            played.require_even(self, group, call.operation)
        if group.single:
            yield ready_ns
            return
        if made is None and group.last is not None:
            group.last.arrive()
        try:
            with self.watch.turn(group.lock), ExitStack() as stack:
                if made is None:
                    entry = self.watch.called(group.channel, call.operation, site, Progress.WAITING)
                    stack.enter_context(self.watch.waiting(entry))
                now_ns = self.state.local.host.now_ns if made is None else made[1]
                rows = group.meet((ready_ns, *call[1:], now_ns, group.limit_ms(timeout)))
                ready, marks, sent, received, hosts, limits_ms = zip(*rows, strict=True)
                if len({*marks}) > 1 or sum(sent) & MASK != sum(received) & MASK:
                    raise self.watch.differing(group.name, call.operation, site)
                self._in_time(group, call, max(ready), hosts, limits_ms)
                self.skew.met(site, call.operation.name, ready_ns, ready, hosts, group.met_ranks)
                yield max(ready)
                if made is not None:
                    self.watch.done(made[0])
        except BaseException as error:
            self.lending.forget()
            if group.is_aborted() and not isinstance(error, dist.DistBackendError):
                raise dist.DistBackendError(ABORTED.format(rank=group.rank)) from None
            raise

    def _in_time(
        self, group: Group, call: Described, last_ns: int, hosts_ns: Sequence[int], limits_ms: Sequence[int]
    ) -> None:
        """End what NCCL's watchdog ends: it counts from when a rank's host makes a call until the last rank is ready.

        Each rank has a limit of its own, 0 for none.

        Raises:
            DistBackendError: a rank waited for longer than it may.
        """
        if last_ns - min(hosts_ns) <= min(limits_ms) * NS:
            return
        waits_ns = [last_ns - host_ns for host_ns in hosts_ns]
        if any(0 < limit_ms * NS < waited_ns for limit_ms, waited_ns in zip(limits_ms, waits_ns, strict=True)):
            waits = {
                rank: (-(-waited_ns // NS), limit_ms)
                for rank, waited_ns, limit_ms in zip(group.met_ranks, waits_ns, limits_ms, strict=True)
            }
            raise self.late(group, group.channel, call.operation, waits)

    def late(
        self, group: Group, channel: Channel, operation: Operation, waits_ms: Mapping[int, tuple[int, int]]
    ) -> dist.DistBackendError:
        """The error of a call for which some rank waited longer than it may; each rank's wait, and its limit."""
        return self.watch.late(channel, operation, waits_ms, group.settings.tears_down)

    def named_of(self, backend: object) -> list[str]:
        """The names of the groups that a backend belongs to: one, once it is made."""
        return [name for name, group in self.by_name.items() if group.lender.inner is backend]

    def introduce(self, group: Group, device: int) -> None:
        """The first collective of a group makes its communicators, for which its ranks learn of one another.

        Raises:
            DistBackendError: another rank works on the same GPU.
        """
        group.met = True
        other = self.state.ranks.met(group, device)
        if other is not None and not self.state.ranks.share_gpus:
            version = ".".join(map(str, NCCL_VERSION))
            place = (FIRST_PCI_BUS + self.state.device(device).physical) << 12  # bus, device, function, in hexadecimal
            error = dist.DistBackendError(DUPLICATE.format(version=version, rank=group.rank, other=other, device=place))
            error.add_note(SHARING)
            raise error

    def mark(self, stream: Stream, site: int) -> Event:
        """An event after the collective that was just queued."""
        machine, host = self.state.machine, self.state.local.host
        event = machine.event(host)
        machine.record(host, event, stream, site, charged=False)
        return event

    def wait(self, event: Event) -> None:
        """Make the current stream of the event's device wait for it; the host goes on."""
        state = self.state
        if event.stream is not None:
            current = self.current(event.stream.device)
            state.machine.wait_event(state.local.host, event, current, state.site())

    def awaited(self, queued: Queued) -> None:
        """Make the current stream wait for a collective, once it is on its stream."""
        if queued.under_way is not None:
            queued.under_way.then.append(lambda: self.awaited(queued))
        elif queued.event is not None:
            self.wait(queued.event)

    def promise(self, tag: Tag, queued: Queued) -> None:
        """The result with this tag is there after a functional collective; it may go before anybody waits for it."""

        def gone(result: weakref.ref[Tag], key: int = id(tag)) -> None:
            self.dropped(self.pending.pop(key)[1])

        self.pending[id(tag)] = weakref.ref(tag, gone), queued

    def wait_when_backward_ends(self, event: Event) -> None:
        """Make the stream that backward ends on wait, as DistributedDataParallel's reducer does."""
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.wait(event))

    def dropped(self, queued: Queued) -> None:
        """A collective's Work is gone: its tensors are kept until it is done."""
        if queued.under_way is not None:
            queued.under_way.then.append(lambda: self.dropped(queued))
        elif queued.event is not None:
            if queued.tensors:
                self.shelf.append(queued)
            if queued.call is not None and not queued.waited:
                self.unwaited.append((queued.event, queued.site, queued.call.name))

    def clear_shelf(self) -> None:
        """Let go of the tensors of collectives that are done."""
        now = self.state.local.host.now_ns
        shelf, self.shelf = self.shelf, []
        for one in shelf:
            if one.event is not None and (one.event.time_ns or 0) > now:
                self.shelf.append(one)
            else:
                one.let_go()
