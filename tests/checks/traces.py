"""Traces made by hand: a few verbs that append rows, so that a test reads like the program that it stands for."""

from __future__ import annotations

from windtunnel.trace.operation import Hazard, Kind, Lane, Note, Signature, Site
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_CATEGORIES, Trace

HOST_STEP_NS = 5_000
HTOD = "Memcpy HtoD (Pageable -> Device)"
HTOD_PINNED = "Memcpy HtoD (Pinned -> Device)"
DTOH = "Memcpy DtoH (Device -> Pageable)"
DTOH_PINNED = "Memcpy DtoH (Device -> Pinned)"
PTOP = "Memcpy PtoP (Device -> Device)"
SIDE_BY_SIDE = (Lane(0, 0), Lane(0, 1))


def at(line: int, file: str = "train.py") -> Site:
    """A line of the program that the trace stands for."""
    return Site(file, line)


class Program:
    """A tiny machine: one clock for the host, one end time a stream. Times are nanoseconds."""

    def __init__(self, gpus: int = 1) -> None:
        self.trace = Trace()
        self.trace.folder = "."  # as a session says where the program runs, so that its lines can be read
        self.trace.facts["gpus"] = [{"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16 << 30} for _ in range(gpus)]
        self.now_ns = 0
        self.ends_ns: dict[tuple[int, int], int] = {}

    def row(self, kind: Kind, lane: Lane, signature: Signature, site: Site, start: int, end: int, value: int) -> None:
        """Append one row, issued now."""
        trace = self.trace
        trace.rows.append(
            (
                kind,
                trace.lanes.number(lane),
                trace.signatures.number(signature),
                trace.sites.number(site),
                self.now_ns,
                start,
                end,
                value,
            )
        )

    def kernel(
        self, name: str = "aten::add", ns: int = 10_000, line: int = 0, device: int = 0, stream: int = 0, **more
    ):
        """A kernel that the host issues without waiting."""
        self.now_ns += HOST_STEP_NS
        start = max(self.now_ns, self.ends_ns.get((device, stream), 0))
        self.ends_ns[device, stream] = start + ns
        self.row(Kind.KERNEL, Lane(device, stream), Signature(name, **more), at(line), start, start + ns, 0)
        return self

    def copy(self, name: str, size: int, line: int, device: int = 0, stream: int = 0, **detail: int):
        """A copy at 10 GB/s; without `non_blocking=1` the host waits for it."""
        detail.setdefault("non_blocking", 0)
        self.now_ns += HOST_STEP_NS
        start = max(self.now_ns, self.ends_ns.get((device, stream), 0))
        end = start + 2_000 + size // 10
        self.ends_ns[device, stream] = end
        signature = Signature(name, detail=tuple(detail.items()))
        self.row(Kind.COPY, Lane(device, stream), signature, at(line), start, end, size)
        if not detail["non_blocking"] and "DtoD" not in name and "PtoP" not in name:
            self.wait("cudaMemcpy (blocking)", line, device, stream)
        return self

    def wait(self, name: str, line: int, device: int = 0, stream: int = 0):
        """The host waits for a stream."""
        begin = self.now_ns
        self.now_ns = max(begin, self.ends_ns.get((device, stream), 0)) + 1_000
        self.row(Kind.SYNCHRONIZE, Lane(device, stream), Signature(name), at(line), begin, self.now_ns, 0)
        return self

    def item(self, line: int, device: int = 0):
        """`.item()`: a copy of four bytes and the wait for it."""
        self.now_ns += HOST_STEP_NS
        start = max(self.now_ns, self.ends_ns.get((device, 0), 0))
        self.ends_ns[device, 0] = start + 2_000
        signature = Signature(DTOH_PINNED, detail=(("non_blocking", 0),))
        self.row(Kind.COPY, Lane(device, 0), signature, at(line), start, start + 2_000, 4)
        return self.wait("aten::_local_scalar_dense", line, device)

    def host(self, ns: int, line: int = 0, name: str = "input"):
        """The host works on its own."""
        self.row(Kind.HOST, Lane(-1, 0), Signature(name), at(line), self.now_ns, self.now_ns + ns, ns)
        self.now_ns += ns
        return self

    def clock(self, line: int, name: str = "time.perf_counter", file: str = "train.py"):
        """The program reads a clock."""
        self.row(Kind.CLOCK_READ, Lane(-1, 0), Signature(name), at(line, file), self.now_ns, self.now_ns, self.now_ns)
        return self

    def step(self, number: int, line: int = 99):
        """An optimizer step ends."""
        self.row(Kind.STEP, Lane(-1, 0), Signature("step"), at(line), self.now_ns, self.now_ns, number)
        return self

    def note(self, code: str, line: int, **detail: str | int):
        """The seam remarks on something."""
        self.trace.notes.append(Note(code, at(line), tuple(detail.items())))
        index = len(self.trace.notes) - 1
        self.row(Kind.NOTE, Lane(-1, 0), Signature(code), at(line), self.now_ns, self.now_ns, index)
        return self

    def hazard(self, code: str, first: int, second: int, lanes=SIDE_BY_SIDE, accesses=("write", "read")):
        """Two accesses without order."""
        self.trace.hazards.append(Hazard(code, at(first), at(second), *lanes, *accesses, 4096, at(1)))
        index = len(self.trace.hazards) - 1
        self.row(Kind.HAZARD, lanes[1], Signature(code), at(second), self.now_ns, self.now_ns, index)
        return self

    def memory(self, action: str, address: int, size: int, line: int, category: str = "", device: int = 0):
        """One step of the allocator's history."""
        self.trace.memory.append(
            (
                MEMORY_ACTIONS.index(action),
                device,
                0,
                address,
                size,
                self.now_ns,
                self.trace.sites.number(at(line)),
                MEMORY_CATEGORIES.index(category),
            )
        )
        return self
