"""CUDA graphs, how a replay runs on the machine's clock.

A replay is one launch of the host; on the device the nodes run as their streams and events ordered them, and share the
room with what else runs there.
"""

from __future__ import annotations

from windtunnel.machine.capture import Capture
from windtunnel.machine.clock import HostThread
from windtunnel.machine.machine import Machine
from windtunnel.machine.stream import Stream
from windtunnel.trace.operation import Kind


def replay(machine: Machine, host: HostThread, stream: Stream, capture: Capture, site: int = 0) -> int:
    """Launch a captured graph on a stream; returns when its last node ends."""
    device = machine.devices[stream.device]
    on_host, gap = device.cost.graph_launch_ns(1)
    issued = host.now_ns = host.now_ns + on_host
    begin = max(issued + device.cost.launch_ns, stream.ready_ns)
    lanes = [machine.lane(host, stream), *(machine.lane(host, other) for other in capture.streams[1:])]
    ready = [begin] * len(capture.streams)
    ends: list[int] = []
    rows = machine.trace.rows
    for node in capture.nodes:
        start = max(ready[node.line], *(ends[number] for number in node.after), 0) + (gap if ends else 0)
        duration = node.duration_ns
        if node.engine:
            start = max(start, device.engine_ready_ns[node.engine])
        elif node.kind == Kind.KERNEL:
            duration = round(duration * device.sustained.slowdown(node.peak_ns, start))
            start, duration = device.place(stream, issued, start, duration, node.occupancy)
        end = ready[node.line] = start + duration
        if node.engine:
            device.engine_ready_ns[node.engine] = end
        ends.append(end)
        rows.append((int(node.kind), lanes[node.line], node.signature, node.site or site, issued, start, end,
                     node.size_bytes))  # fmt: skip
    stream.ready_ns = max(ready)
    stream.epoch += 1
    if machine.blocking:
        machine.synchronize_stream(host, stream, site=site)
    return stream.ready_ns
