"""A saved trace on another GPU: every kernel and copy priced again, the machine's rules replayed, nothing run.

What the host did between its calls stays as it was: the model of the host does not depend on the GPU. Streams keep
their order, events, waits and barriers are followed, engines, a device's room and the launch queue's limit are applied
anew. A measured trace has no barriers: a start that nothing explains is taken to follow what ended just then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.cost.bands import Kernels, Known, of_step
from windtunnel.cost.model import CostModel
from windtunnel.cost.sustained import Sustained
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.gpus import from_description, versions
from windtunnel.gpus.gpu import Gpu
from windtunnel.machine.launches import MARKED, network_band
from windtunnel.machine.occupancy import FULL, Communication, Occupancy, lost
from windtunnel.networks import Network, Spread
from windtunnel.networks import from_description as from_network
from windtunnel.trace.operation import Kind, Lane, Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.rows import Row
from windtunnel.trace.trace import Trace

ON_DEVICE = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE})


def retime(
    trace: Trace, models: Sequence[Gpu] = (), network: Network | None = None, paces: Sequence[float] = ()
) -> Trace:
    """The trace as it would be on `models`: one GPU model for all devices, or one each; without any, on those it is of.

    `network` connects its nodes; by default what did when the trace was made. `paces` are those of the devices'
    kernels, by default as they were.

    Raises:
        UsageError: there are neither one nor as many models as the trace has devices.
        FileFormatError: the trace does not say which GPUs it is of.
    """
    before = gpus_of(trace)
    models = models or before
    if len(models) not in (1, len(before)):
        many = "" if len(before) == 1 else f" for all of them, or {len(before)}"
        devices = "1 device" if len(before) == 1 else f"{len(before)} devices"
        raise UsageError(f"the trace has {devices} and {len(models)} GPUs were given: give one GPU{many}")
    after = [models[0]] * len(before) if len(models) == 1 else list(models)
    cuda = _cuda_version(trace, tuple(after))
    run = Retiming(trace, before, after, cuda, network, paces)
    for row in trace.rows:
        run.take(row)
    run.out.facts = _facts(trace, before, after, cuda, run.band())
    if paces:
        run.out.facts["paces"] = list(paces)
    if int(trace.facts.get("nodes", 1)) > 1:
        given = {"network": network.describe(), "network_assumed": False} if network else {}
        run.out.facts |= given | {"network_band": network_band(run.out, run.new)}
    run.out.sources = trace.sources
    return run.out


def _cuda_version(trace: Trace, after: tuple[Gpu, ...]) -> versions.Version:
    """The CUDA version that the program would have run with on `after`."""
    given = trace.facts.get("options", {}).get("cuda_version")
    if given:
        return max(versions.parse_version(str(given)), versions.default_cuda(after))
    return versions.runtime_cuda(after, trace.facts.get("versions", {}).get("torch"))


def does_not_fit(trace: Trace) -> list[int]:
    """The devices whose peak of reserved memory and CUDA context are more than their GPU has."""
    return [
        index
        for index, device in enumerate(trace.facts.get("devices", []))
        if device.get("peak_reserved_bytes", 0) + device.get("context_bytes", 0) > device.get("memory_bytes", 1 << 62)
    ]


def gpus_of(trace: Trace) -> list[Gpu]:
    """The GPUs of a trace; raises FileFormatError where it does not say which."""
    try:
        return [from_description(gpu) for gpu in trace.facts["gpus"]]
    except KeyError as error:
        raise FileFormatError(
            "the trace does not say which GPUs it was made on, so its times cannot be compared: write it with "
            "`windtunnel run --trace`"
        ) from error


def network_of(trace: Trace) -> Network | None:
    """What connected the nodes of a trace; None where it was made on one."""
    facts = trace.facts.get("network")
    return from_network(facts) if facts else None


def cost_models(
    trace: Trace,
    gpus: Sequence[Gpu],
    cuda: tuple[int, int],
    network: Network | None = None,
    paces: Sequence[float] = (),
) -> list[CostModel]:
    """What operations of a trace cost on these GPUs; with the host, the network and the paces that it was made with."""
    issue, connected = float(trace.facts.get("host", {}).get("issue", 1.0)), network or network_of(trace)
    paces = paces or trace.facts.get("paces") or [1.0] * len(gpus)
    return [
        CostModel(gpu, cuda, issue=issue, network=connected, pace=pace) for gpu, pace in zip(gpus, paces, strict=True)
    ]


def _facts(trace: Trace, before: list[Gpu], after: list[Gpu], cuda: versions.Version, band: float | None) -> Json:
    facts = dict(trace.facts)
    was = facts.get("cuda_version") or cuda
    facts["gpus"] = [
        {
            "key": gpu.key,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "compute_capability": list(gpu.compute_capability),
            "sm_count": gpu.sm_count,
            "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
            "peak_flops": dict(gpu.peak_flops),
        }
        for gpu in after
    ]
    facts["devices"] = [
        {
            **device,
            "memory_bytes": new.memory_bytes,
            "context_bytes": device.get("context_bytes", 0)  # of each process that shares the device
            * versions.context_bytes(new, cuda)
            // versions.context_bytes(old, (was[0], was[1])),
        }
        for device, old, new in zip(trace.facts.get("devices", []), before, after, strict=False)
    ]
    facts["cuda_version"] = list(cuda)
    facts["retimed_from"] = [gpu.key for gpu in before]
    facts["source"] = "modelled"
    facts["band"] = None if band is None else round(band, 3)
    return facts


@dataclass
class Host:
    """A host thread: where it stood in the trace, and where it stands now."""

    before_ns: int = 0
    now_ns: int = 0


@dataclass
class _Line:
    """A stream: when its work so far ended in the trace, and when it ends now; likewise its recorded events."""

    before_ns: int = 0
    ready_ns: int = 0
    issued_ns: int = -1
    epoch: int = 0
    busy_ns: int = 0  # when its last kernel ends now
    beside_ns: int = -1  # when the rest of the launch ends that its next work is a part of, if it is
    events: list[tuple[int, int]] = field(default_factory=list)
    marks: deque[int] = field(default_factory=deque)


class _Price(NamedTuple):
    """How much longer something takes now; its occupancy in thousandths; how known it is; its work, then and now."""

    ratio: float
    occupancy: int = 0
    known: Known = Known(0.0)
    peak_ns: tuple[float, float] = (0.0, 0.0)


def _price(kind: Kind, old: CostModel, new: CostModel, device: int, signature: Signature, size_bytes: int) -> _Price:
    if kind == Kind.COLLECTIVE:
        spread = Spread.of_detail(signature.detail)
        before, after = (model.collective_ns(signature.name, size_bytes, spread.ranks, spread) for model in (old, new))
        return _Price(after / before)
    if kind == Kind.COPY:
        source = -1 if "HtoD" in signature.name else device
        destination = -1 if "DtoH" in signature.name else device + ("PtoP" in signature.name)
        pinned = "Pinned" in signature.name
        before, after = (model.copy_ns(size_bytes, source, destination, pinned) for model in (old, new))
        return _Price(after / before)
    if signature.name == "spin_kernel":  # it lasts as long as it was told to
        return _Price(1.0, 1)
    then, now = old.kernel(signature), new.kernel(signature)
    ratio = now.duration_ns / then.duration_ns if then.duration_ns else 1.0
    return _Price(ratio, max(1, min(FULL, round(now.occupancy * FULL))), now.known, (then.peak_ns, now.peak_ns))


class Retiming:
    """One pass over a trace's rows.

    `scale` and `lead_ns` are for who changes the program on the way (`savings`): by what the next operation's time on
    the device is multiplied, and how long after the one before it on its stream it begins at the earliest.
    """

    def __init__(
        self,
        trace: Trace,
        before: list[Gpu],
        after: list[Gpu],
        cuda: tuple[int, int],
        network: Network | None = None,
        paces: Sequence[float] = (),
    ) -> None:
        self.trace = trace
        self.out = Trace()
        self.old = cost_models(trace, before, cuda)
        self.new = cost_models(trace, after, cuda, network, paces)
        self.loads = [(Sustained(one), Sustained(other)) for one, other in zip(before, after, strict=False)]
        self.hosts: dict[int, Host] = {}
        self.lines: dict[tuple[int, int], _Line] = {}
        self.engines: dict[tuple[int, str], tuple[int, int]] = {}
        self.rooms = [Occupancy() for _ in after]
        self.communication = [(Communication(), Communication()) for _ in after]  # in the trace, and now
        self.priorities = {(device, stream): one for device, stream, one in trace.facts.get("priorities", ())}
        self.events: dict[int, int] = {}
        self.launches: dict[int, tuple[int, bool]] = {}  # of messages: when each begins, and whether it has
        self.ends: dict[int, tuple[int, int]] = {}  # end in the trace -> (end now, occupancy)
        self.prices: dict[tuple[int, int, int], _Price] = {}
        self.kernel_before_ns = 0
        self.kernel_ns = 0
        self.spent: Counter[tuple[int, Known]] = Counter()  # number of a kernel's signature, its band -> its time
        self.scale, self.lead_ns = 1.0, 0
        self.guess = trace.facts.get("source") == "measured"
        self.shared = {d for d in range(len(after)) if len({x.stream for x in trace.lanes if x.device == d}) > 1}
        out, old = self.out, trace
        out.lanes, out.signatures, out.sites = old.lanes, old.signatures, old.sites
        out.hazards, out.notes, out.memory, out.roles = old.hazards, old.notes, old.memory, old.roles

    def band(self) -> float | None:
        """The error band of the kernels together, as a share of their time."""
        signatures = self.trace.signatures
        kernels = Kernels.of_calls((signatures[number], ns, known) for (number, known), ns in self.spent.items())
        limit = next((now.met for _, now in self.loads if now.met is not None), None)
        return None if kernels is None else of_step(kernels, limit)

    def take(self, row: Row) -> None:
        """Put one row on the new clock."""
        kind, lane_number, number, site, issued, start, end, value = row
        lane = self.trace.lanes[lane_number]
        host = self.host(lane.thread, issued)
        if kind in (Kind.FORK, Kind.JOIN):
            made = self._thread(row, host)
            self.out.rows.append((kind, lane_number, number, site, host.now_ns, made, host.now_ns, value))
            return
        host.now_ns += issued - host.before_ns
        host.before_ns = issued
        if lane.device >= len(self.new):
            raise FileFormatError(f"the trace has work of device {lane.device} and names {len(self.new)} GPUs")
        if kind == Kind.QUEUE:  # where the queue is full now is seen at each launch
            host.before_ns = end
            return
        made = issued_now = host.now_ns
        if kind in ON_DEVICE:
            made, end_now = self._work(row, lane, host)
        elif kind == Kind.BARRIER:
            first, line = self._line(self.trace.lanes[value]), self._line(lane)
            made, end_now = first.ready_ns, max(line.ready_ns, first.ready_ns)
            line.ready_ns, line.before_ns = end_now, max(line.before_ns, end)
        elif kind == Kind.SYNCHRONIZE:
            end_now = host.now_ns = self._waited(lane, number, end, value, host)
            host.before_ns = end
        elif kind in (Kind.POST, Kind.MEETING):
            made, end_now = self._met(row, lane, host)
        elif kind == Kind.EVENT_RECORD:
            line = self._line(lane)
            cost = self.new[lane.device]
            made = end_now = self.events[value] = max(line.ready_ns, host.now_ns + cost.launch_ns)
            if end > start:  # it tells the time
                end_now = line.ready_ns = made + cost.stamp_ns
                line.before_ns = max(line.before_ns, end)
            line.events.append((start, made))
        elif kind == Kind.EVENT_WAIT:
            line = self._line(lane)
            made = self.events.get(value, 0)
            end_now = line.ready_ns = max(line.ready_ns, made)
            line.before_ns = max(line.before_ns, end)
        else:
            host.now_ns += end - start
            host.before_ns = max(host.before_ns, end)
            end_now = host.now_ns
            value = host.now_ns if kind == Kind.CLOCK_READ else value
        self.out.rows.append((kind, lane_number, number, site, issued_now, made, end_now, value))
        if kind == Kind.KERNEL:
            self._throttle(lane_number, lane, host)

    def _throttle(self, lane_number: int, lane: Lane, host: Host) -> None:
        """The machine's rule of the launch queue (`machine/launches.py`)."""
        line = self._line(lane)
        if line.epoch % MARKED or lane.device < 0:
            return
        line.marks.append(line.ready_ns)
        depth = self.new[lane.device].queue_depth
        if len(line.marks) <= depth // MARKED:
            return
        begin, until = host.now_ns, line.marks.popleft()
        if until > begin:
            host.now_ns = until
            name = self.out.signatures.number(Signature("launch queue is full"))
            self.out.rows.append((int(Kind.QUEUE), lane_number, name, 0, begin, begin, until, depth))

    def host(self, thread: int, issued: int) -> Host:
        """A host thread, which begins where its parent stands."""
        host = self.hosts.get(thread)
        if host is None:
            # The parent is the thread whose place in the trace is the nearest before it.
            parents = [other for other in self.hosts.values() if other.before_ns <= issued]
            parent = max(parents, key=lambda other: other.before_ns, default=Host())
            host = self.hosts[thread] = Host(parent.before_ns, parent.now_ns)
        return host

    def _thread(self, row: Row, host: Host) -> int:
        """A thread starts, or has waited for the end of another: when the one that does stood there."""
        kind, _, _, _, _, start, end, number = row
        other = self.hosts.get(number, host)
        if kind == Kind.FORK:
            began = other.now_ns + start - other.before_ns
            own = host.now_ns + end - host.before_ns
            host.now_ns = max(began, own) if end > start else began
        else:
            began = host.now_ns + start - host.before_ns
            host.now_ns = max(began, other.now_ns + max(0, end - other.before_ns if end > start else 0))
        host.before_ns = end
        return began

    def _line(self, lane: Lane) -> _Line:
        return self.lines.setdefault((lane.device, lane.stream), _Line())

    # ------------------------------------------------------------------ work

    def _work(self, row: Row, lane: Lane, host: Host) -> tuple[int, int]:
        kind, _, number, _, issued, start, end, size_bytes = row
        line = self._line(lane)
        signature = self.trace.signatures[number]
        ratio, occupancy, known, (work_before, work_now) = self._price(Kind(kind), lane.device, number, size_bytes)
        length: float = end - start
        if kind == Kind.KERNEL and lane.device in self.shared:
            length -= self.communication[lane.device][0].spent_ns(start, end)
        if work_before and self.scale == 1.0:  # what is scaled is given its time anew
            length = round(length / self.loads[lane.device][0].slowdown(work_before, start))
        duration = max(1, round(length * ratio * self.scale)) if end > start else 0
        earliest = issued + self.old[lane.device].launch_ns
        begin = line.ready_ns + self.lead_ns
        if line.beside_ns < 0:
            begin = max(begin, host.now_ns + self.new[lane.device].launch_ns)
        if issued == line.issued_ns and start > line.before_ns:
            begin += start - line.before_ns  # a node of a graph: the gap before it is the graph's own
            earliest = start
        direction = signature.name.split()[1:2] if kind == Kind.COPY else []
        engine = (lane.device, direction[0].replace("PtoP", "DtoD")) if direction else None
        if engine is not None:
            engine_before, engine_now = self.engines.get(engine, (0, 0))
            earliest, begin = max(earliest, engine_before), max(begin, engine_now)
        if self.guess and start > max(earliest, line.before_ns) and start in self.ends:
            ended, other = self.ends[start]
            if kind != Kind.KERNEL or other + occupancy <= FULL:
                begin = max(begin, ended)
        if work_now:
            duration = round(duration * self.loads[lane.device][1].slowdown(work_now, begin))
        if kind == Kind.KERNEL:
            self.kernel_before_ns += end - start
            self.kernel_ns += duration
            self.spent[number, known] += duration
            if lane.device in self.shared:
                begin, duration = self._place(lane, line, host.now_ns, begin, duration, occupancy)
        elif kind == Kind.COLLECTIVE and lane.device in self.shared:
            self._communicate(lane, line, signature, (start, end), (begin, begin + duration))
        ended_now = begin + duration
        line.epoch += issued != line.issued_ns
        line.before_ns, line.ready_ns, line.issued_ns = end, max(ended_now, line.beside_ns), issued
        line.beside_ns = -1
        self.ends[end] = ended_now, occupancy
        if engine is not None:
            self.engines[engine] = end, ended_now
            if "Pageable" in signature.name and ("non_blocking", 1) in signature.detail:
                host.now_ns, host.before_ns = max(host.now_ns, ended_now), max(host.before_ns, end)
        return begin, ended_now

    def _place(
        self, lane: Lane, line: _Line, issued: int, start: int, duration: int, occupancy: int
    ) -> tuple[int, int]:
        """The machine's rule of a device's room (`machine/device.py`): when a kernel finds some, and its length."""
        room, priority = self.rooms[lane.device], self.priorities.get((lane.device, lane.stream), 0)
        start = room.place(issued, start, duration, occupancy, priority)
        if room.displaced_ns:
            for place, other in self.lines.items():
                same = place[0] == lane.device and self.priorities.get(place, 0) == priority
                if same and other is not line and other.busy_ns > start:
                    other.ready_ns += room.displaced_ns
        duration = room.prolong(self.communication[lane.device][1], start, duration, occupancy, priority)
        line.busy_ns = start + duration
        displaced = room.lower(start, priority) + occupancy - FULL if len(room.levels) > 1 else 0
        if displaced > 0:
            for place, other in self.lines.items():
                lower = place[0] == lane.device and self.priorities.get(place, 0) > priority
                if lower and other.ready_ns > start:
                    other.ready_ns += duration * min(displaced, FULL) // FULL
        return start, duration

    def _communicate(
        self, lane: Lane, line: _Line, call: Signature, before: tuple[int, int], now: tuple[int, int]
    ) -> None:
        """Its rule of collectives: kernels beside them take longer."""
        spread = Spread.of_detail(call.detail)
        shares = [model[lane.device].collective_share(call.name, spread) for model in (self.old, self.new)]
        for level, share, (start, end) in zip(self.communication[lane.device], shares, (before, now), strict=True):
            level.add(start, end, share)
            level.forget(start)
        for place, other in self.lines.items():
            if place[0] == lane.device and other is not line and other.busy_ns > now[0]:
                other.ready_ns += lost(min(now[1], other.busy_ns) - now[0], shares[-1])

    def _price(self, kind: Kind, device: int, number: int, size_bytes: int) -> _Price:
        key = device, number, 0 if kind == Kind.KERNEL else size_bytes
        price = self.prices.get(key)
        if price is None:
            signature = self.trace.signatures[number]
            price = self.prices[key] = _price(kind, self.old[device], self.new[device], device, signature, size_bytes)
        return price

    # ------------------------------------------------------------------ waiting

    def _met(self, row: Row, lane: Lane, host: Host) -> tuple[int, int]:
        """When this rank is ready for what it does together with others, and when the last of them is.

        The others are taken to be as much faster or slower as this rank's kernels.
        """
        kind, _, number, _, _, start, end, launch = row
        waited = end - start
        if self.kernel_before_ns:
            waited = waited * self.kernel_ns // self.kernel_before_ns
        if lane.device < 0:
            begin, host.now_ns, host.before_ns = host.now_ns, host.now_ns + waited, end
            return begin, host.now_ns
        line, model = self._line(lane), self.new[lane.device]
        name = self.trace.signatures[number].name
        ready = max(line.ready_ns, host.now_ns + model.dispatch_ns(name) + model.launch_ns)
        is_message = any(key == "peer" for key, _ in self.trace.signatures[number].detail)
        begins_ns, begun = self.launches.get(launch, (ready, False)) if is_message else (ready, False)
        if kind == Kind.POST:
            if not begun:
                self.launches[launch] = ready, False
            return ready, ready
        if begun:  # messages of one launch run beside one another
            ready, line.beside_ns = begins_ns, line.ready_ns
        elif is_message:
            self.launches[launch] = begins_ns, True
        line.ready_ns, line.before_ns = ready + waited, max(line.before_ns, end)
        line.issued_ns = -1  # what follows is no node of a graph, though its launch may be issued already
        return ready, ready + waited

    def _waited(self, lane: Lane, number: int, end: int, event: int, host: Host) -> int:
        """When the host goes on after a synchronization."""
        name = self.trace.signatures[number].name
        call = host.now_ns + (self.new[lane.device].synchronize_ns if lane.device >= 0 else 0)
        if event:
            return max(call, self.events.get(event, 0))
        call = max(call, self.ends.get(end, (0, 0))[0])  # what the host waited for in the trace
        if name == "cudaDeviceSynchronize":
            return max([call, *(line.ready_ns for at, line in self.lines.items() if at[0] == lane.device)])
        line = self._line(lane)
        if name == "cudaEventSynchronize":
            recorded = [now for before, now in line.events if before <= end]
            return max(call, recorded[-1] if recorded else 0)
        return max(call, line.ready_ns)
