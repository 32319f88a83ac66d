"""The check `repeated-copy`: the same data, unchanged, moved to the same device again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._copies import detail, non_blocking, pageable, to_device
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, times

REPEATS = 3  # twice may be two uses that do not know of each other
FEW_SOURCES = 4  # a line that moves more tensors in turn walks over a data set, which need not fit on the device
WORTH_BYTES = 64 << 10  # moved in vain; less costs nothing that one would notice


@dataclass
class RepeatedCopies:
    """The copies of one source line that could be told apart."""

    site: Site
    device: int
    seen: dict[tuple[int, ...], int]
    again: int = 0
    again_bytes: int = 0


class RepeatedCopy(Check):
    """The same data, unchanged, moved to the same device again and again.

    ## What it does
    Looks for source lines that copy the same bytes of the same host tensor, not written to in between, to one device
    three times or more. A line that moves more than four different tensors in turn (a data set, epoch after epoch) is
    left alone: the data may not fit on the device. So are non-blocking copies from pinned memory on a side stream:
    weights that are streamed in for each use, and take no memory on the device in between.

    ## Why it is bad
    The link to the host is slow, ten to fifty times slower than the device's own memory, and each copy costs the host
    time as well.

    ## Example
    ```python
    for x in batches:
        y = net(x, mask.to("cuda"))
    ```

    ## Use instead
    ```python
    mask = mask.to("cuda")
    for x in batches:
        y = net(x, mask)
    ```
    """

    code: ClassVar = "repeated-copy"
    costs: ClassVar = True
    kinds: ClassVar = frozenset({Kind.COPY})
    supersedes: ClassVar = frozenset({"pageable-copy", "host-sync"})

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int, int], RepeatedCopies] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Remember what was copied where."""
        offset = detail(record, "source_offset")
        source = detail(record, "source")
        if not to_device(record) or source is None or offset is None:
            return  # without the offset, the slices of one tensor would look like one and the same
        if record.lane.stream and non_blocking(record) and not pageable(record):
            return
        line = self.lines.setdefault(
            (record.site.file, record.site.line, record.lane.device),
            RepeatedCopies(record.site, record.lane.device, {}),
        )
        what = (source, detail(record, "source_version") or 0, offset, record.value)
        before = line.seen.get(what, 0)
        line.seen[what] = before + 1
        if before:
            line.again += 1
            line.again_bytes += record.value

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line."""
        return [
            self._finding(line)
            for line in self.lines.values()
            if max(line.seen.values()) >= REPEATS and len(line.seen) <= FEW_SOURCES
        ]

    def _finding(self, line: RepeatedCopies) -> Finding:
        return Finding(
            self.code,
            self.severity if line.again_bytes >= WORTH_BYTES else "info",
            f"the same unchanged data was copied to cuda:{line.device} again {times(line.again)}: "
            f"{format_bytes(line.again_bytes)} moved for nothing",
            "move it once, before the loop (a module's constant belongs in `register_buffer`)",
            line.site,
            times=line.again,
            size_bytes=line.again_bytes,
            device=line.device,
            fix="copy once",
        )
