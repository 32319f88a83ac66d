"""What launches meet besides their stream: a queue that is full, what is done once a device, a room that is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.machine.occupancy import FULL
from understudy.trace.operation import FIRST_USE, Kind, Signature
from understudy.trace.rows import SPILL, WIDTH

if TYPE_CHECKING:
    from understudy.machine.clock import HostThread
    from understudy.machine.device import Device
    from understudy.machine.machine import Machine
    from understudy.machine.stream import Stream

MARKED = 64
"""Of how many launches one is looked at for the queue's limit."""


def throttle(machine: Machine, host: HostThread, stream: Stream, lane: int) -> None:
    """Let the host wait while as many launches are pending on a stream as its queue holds."""
    marks = stream.marks
    marks.append(stream.ready_ns)
    depth: int = machine.devices[stream.device].cost.queue_depth
    if len(marks) <= depth // MARKED:
        return
    begin = host.now_ns
    if host.wait_until(marks.popleft()):
        name = machine.trace.signatures.number(Signature("launch queue is full"))
        machine.trace.rows.append((int(Kind.QUEUE), lane, name, 0, begin, begin, host.now_ns, depth))


def first_use(machine: Machine, host: HostThread, device: Device, name: str) -> None:
    """Charge the host for what happens once on a device, and record it; nothing on a machine that is warm."""
    if machine.warm:
        return
    for what, duration_ns in device.cost.first_use_ns(name):
        if what in device.used:
            continue
        device.used.add(what)
        host.advance(duration_ns)
        machine.mark(host, Kind.HOST, FIRST_USE + what, duration_ns, 0, duration_ns)
        machine.trace.hand_on()


def fill_rooms(machine: Machine) -> None:
    """Let the devices' rooms know of kernels that still run when a second stream comes to be."""
    trace = machine.trace
    trace.rows.spill()
    recent = trace.rows.stored[-SPILL:]
    for at in range(0, len(recent), WIDTH):
        kind, lane, signature, _, issued, start, end, _ = recent[at : at + WIDTH]
        if kind == Kind.KERNEL and end > machine.host.now_ns:
            device = machine.devices[trace.lanes[lane].device]
            part = round(device.cost.kernel(trace.signatures[signature]).occupancy * FULL)
            device.occupancy.place(issued, start, end - start, max(1, min(FULL, part)))


def band(machine: Machine) -> float | None:
    """The error band of the trace's kernels, as a share of their time and weighted by it; None without kernels."""
    total = 0
    weighted = 0.0
    for kind, _, signature, _, _, start, end, _ in machine.trace.rows:
        if kind == Kind.KERNEL and signature in machine.bands:
            total += end - start
            weighted += (end - start) * machine.bands[signature]
    return weighted / total if total else None
