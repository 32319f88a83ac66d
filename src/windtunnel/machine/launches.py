"""What launches meet besides their stream, a queue that is full or a room in use; and the band of their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from windtunnel.cost.bands import Kernels, Known, of_step
from windtunnel.cost.model import CostModel
from windtunnel.cost.sustained import Limit
from windtunnel.machine.clock import HostThread
from windtunnel.machine.device import Device
from windtunnel.machine.occupancy import FULL
from windtunnel.machine.stream import Stream
from windtunnel.networks import Spread
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.rows import SPILL, WIDTH
from windtunnel.trace.trace import Trace

MARKED = 64
"""Of how many launches one is looked at for the queue's limit."""


def throttle(trace: Trace, device: Device, host: HostThread, stream: Stream, lane: int) -> None:
    """Let the host wait while as many launches are pending on a stream as its queue holds."""
    marks = stream.marks
    marks.append(stream.ready_ns)
    depth: int = device.cost.queue_depth
    if len(marks) <= depth // MARKED:
        return
    begin = host.now_ns
    if host.wait_until(marks.popleft()):
        name = trace.signatures.number(Signature("launch queue is full"))
        trace.rows.append((int(Kind.QUEUE), lane, name, 0, begin, begin, host.now_ns, depth))


def fill_rooms(trace: Trace, devices: Sequence[Device], now_ns: int) -> None:
    """Let the devices' rooms know of kernels that still run when a second stream comes to be."""
    trace.rows.spill()
    recent = trace.rows.stored[-SPILL:]
    for at in range(0, len(recent), WIDTH):
        kind, lane, signature, _, issued, start, end, _ = recent[at : at + WIDTH]
        if kind == Kind.KERNEL and end > now_ns:
            device = devices[trace.lanes[lane].device]
            part = round(device.cost.kernel(trace.signatures[signature]).occupancy * FULL)
            device.occupancy.place(issued, start, end - start, max(1, min(FULL, part)))


def band(trace: Trace, known: Mapping[int, Known], limit: Limit | None = None) -> float | None:
    """The error band of the trace's kernels together, as a share of their time; None without kernels.

    `limit` is the power limit that they met.
    """
    spent: Counter[int] = Counter()
    for kind, _, signature, _, _, start, end, _ in trace.rows:
        if kind == Kind.KERNEL and signature in known:
            spent[signature] += end - start
    kernels = Kernels.of_calls((trace.signatures[number], ns, known[number]) for number, ns in spent.items())
    return None if kernels is None else of_step(kernels, limit)


def network_band(trace: Trace, costs: Sequence[CostModel]) -> list[float] | None:
    """Within which factors the time of all collectives between nodes is known together; None without any."""
    lengths: Counter[tuple[int, int, int]] = Counter()
    for kind, lane, signature, _, _, start, end, value in trace.rows:
        if kind == Kind.COLLECTIVE:
            lengths[trace.lanes[lane].device, signature, value] += end - start
    total, low, high = 0, 0.0, 0.0
    for (device, number, size), length in lengths.items():
        call = trace.signatures[number]
        spread = Spread.of_detail(call.detail)
        if spread.nodes > 1 and device < len(costs):
            found = costs[device].links.collective_band(call.name, size, spread.ranks, spread)
            total, low, high = total + length, low + found.low * length, high + found.high * length
    return [round(low / total, 3), round(high / total, 3)] if total else None
