"""The check `host-sync`: lines at which the host waits for a device."""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

from windtunnel.checks import Check
from windtunnel.checks._copies import non_blocking, pageable, to_device
from windtunnel.checks._stalls import StalledLine, Stalls, UnchargedWait
from windtunnel.checks._work import Work
from windtunnel.operators.card import card
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.sources import STEERING
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_ns, times


class Cause(NamedTuple):
    """What the program did, in its own words, and what it could do instead."""

    what: str
    advice: str


READ = "keep the value on the device (`total += loss.detach()`) and read it once, after the loop or every hundred steps"
STEERS = (
    "the program decides by this value: look at it every hundred steps only, or decide on the device (`torch.where`)"
)
KEPT = (
    "copy into pinned memory that was made before the loop (`results[i].copy_(y, non_blocking=True)`), and synchronize "
    "once, before the values are read"
)
KEEPS = re.compile(r"\.(append|extend|add)\(|\]\s*=[^=]|\+=\s*\[")
"""A line that keeps what it copies, so that the next copy needs new memory."""
ASSIGNED = re.compile(r"\s*(\w+)\s*=[^=]")
WHERE = "use `torch.where(mask, x, 0)` or multiply by the mask: shapes stay fixed and nothing waits"
COUNTED = "count into a tensor of a fixed size: `torch.zeros(n, device=x.device).index_add_(0, x, ones)`"
RARELY = "decompose in every hundredth step, or on the host beside the device's work"
ADVICE = {"read": READ, "where": WHERE, "count": COUNTED, "rarely": RARELY}
"""What several operators' cards advise."""
UNNEEDED = "keep it for timing only: whatever reads a value waits for it anyway"
CAUSES = {
    "Tensor.tolist": Cause("`tolist()`", READ),
    "Tensor.__repr__": Cause("printing a tensor", READ),
    "to the host": Cause(
        "a copy to the host (`.cpu()`, `.to('cpu')`)",
        "copy once after the loop, or use `.to('cpu', non_blocking=True)` and synchronize before the values are read",
    ),
    "to the device": Cause("a blocking copy to the device from pinned memory", "pass `non_blocking=True`"),
    "cudaDeviceSynchronize": Cause(
        "`torch.cuda.synchronize()`", "keep it for timing only: work on one stream runs in order without it"
    ),
    "cudaStreamSynchronize": Cause(
        "waiting for a stream", "let the other stream wait (`wait_stream`), unless the host needs the values now"
    ),
    "cudaEventSynchronize": Cause(
        "waiting for an event", "let a stream wait (`wait_event`), unless the host needs the values now"
    ),
    "block_until_ready": Cause("`block_until_ready()`", UNNEEDED),
    "wait_to_read": Cause("`wait_to_read()`", UNNEEDED),
    "wait_to_write": Cause("`wait_to_write()`", UNNEEDED),
    "waitall": Cause("`waitall()`", UNNEEDED),
    "cudaFree": Cause(
        "memory going back to the driver (`empty_cache()`, or an allocation that did not fit at first)",
        "take `empty_cache()` out of the loop; if there is none, use less memory",
    ),
}
"""What makes the host wait beside operators, whose cards have words for it."""
# Asked for by name, and needed wherever the host reads what a non_blocking copy brought: never more than info.
ASKED_FOR = frozenset({"cudaStreamSynchronize", "cudaEventSynchronize"})
EXPLICIT = ASKED_FOR | {"cudaDeviceSynchronize", "block_until_ready", "wait_to_read", "wait_to_write", "waitall"}


class HostSync(Check):
    """Lines at which the host waits for a device.

    ## What it does
    Groups every wait of the host by the source line that caused it: `.item()`, `float(tensor)`, `print(tensor)`,
    `.cpu()`, `.tolist()`, `nonzero`, boolean masks, and the same inside libraries. It counts them, and adds up how
    long the device then stood idle until the next kernel arrived. A line that is not repeated, or whose waits cost
    less than half a percent of the run, is reported as `info`; so are waits for a stream or an event, which are
    asked for by name. Where the line is a call into a library (`trainer.train()`), copies are grouped by the place in
    the library, which the message names. A `torch.cuda.synchronize()` right before the clock is read is a measurement
    and is not counted.

    ## Why it is bad
    The host runs ahead of the device and queues work. While it waits it queues nothing, so the device runs dry and then
    idles for as long as the host needs to issue the next kernel. With several GPUs, all of them idle.

    ## Example
    ```python
    for x, y in batches:
        loss = loss_function(net(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    ```

    ## Use instead
    ```python
    for x, y in batches:
        loss = loss_function(net(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    history = torch.stack(history).tolist()
    ```
    """

    code: ClassVar = "host-sync"
    costs: ClassVar = True
    kinds: ClassVar = Stalls.KINDS | {Kind.CLOCK_READ}
    parts: ClassVar = {"work": Work}
    work: Work

    def __init__(self) -> None:
        self.stalls = Stalls()
        self.explicit: list[UnchargedWait] = []  # waits asked for by name followed by no work and no clock read yet

    def see(self, record: Record, trace: Trace) -> None:
        """Count waits by line."""
        if record.kind == Kind.CLOCK_READ:
            self.explicit = [one for one in self.explicit if one.record.lane.thread != record.lane.thread]
            return
        if record.kind != Kind.SYNCHRONIZE:
            self._keep_explicit()
        incident = self.stalls.see(record, self.work)
        if incident is None:
            return
        name = record.signature.name
        if name in EXPLICIT:
            self.explicit.append(incident)
        elif (cause := _cause(name, incident.copy)) is not None:
            self.stalls.charge(incident, cause)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line."""
        self._keep_explicit()
        return [self._finding(line, trace) for line in self.stalls.lines.values()]

    def _keep_explicit(self) -> None:
        for incident in self.explicit:
            self.stalls.charge(incident, incident.record.signature.name)
        self.explicit.clear()

    def _finding(self, line: StalledLine, trace: Trace) -> Finding:
        cause = line.cause()
        what, advice = CAUSES.get(cause) or _words(cause)
        costs = cause not in ASKED_FOR and self.stalls.costs(line)
        if advice == READ and _steers(line.site, trace):
            advice = STEERS
        if cause == "to the host" and KEEPS.search(trace.line(line.site).split("#")[0]):
            advice = KEPT
        message = f"{what}{line.where} blocked the host {times(line.times)} ({format_ns(line.wait_ns)} in total)" + (
            f", and the device idled {format_ns(line.lost_ns)} until new work arrived"
            if line.lost_ns
            else "; no device idled"
        )
        return Finding(
            self.code,
            self.severity if costs else "info",
            message,
            advice,
            line.site,
            line.other,
            times=line.times,
            lost_ns=line.lost_ns,
            device=line.device,
            fix="no wait",
        )


def _words(name: str) -> Cause:
    """The words of an operator's card."""
    found = card(name)
    return Cause(found.what or name, ADVICE.get(found.advice, found.advice or READ))


def _steers(site: Site, trace: Trace) -> bool:
    """Whether the value that a line reads decides what the program does next."""
    text = trace.line(site)
    if STEERING.match(text):
        return True
    name = ASSIGNED.match(text)
    if name is None:
        return False
    near = trace.near(site)
    following = [near.get(site.line + number, "") for number in range(1, 4)]
    return any(STEERING.match(line) and re.search(rf"\b{name[1]}\b", line) for line in following)


def _cause(name: str, copy: Record | None) -> str | None:
    if not name.startswith("cudaMemcpy"):
        return name
    if copy is None:
        return "to the host"
    if pageable(copy) and (to_device(copy) or non_blocking(copy)):
        return None  # the check pageable-copy speaks of it
    return "to the device" if to_device(copy) else "to the host"
