"""The check `slower-than-one-gpu`: ranks that train slower together than one of them would alone."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Site
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, plural

MIN_STEPS = 10  # fewer are a test


class SlowerThanOneGpu(Check):
    """Ranks that train slower together than one of them would alone.

    ## What it does
    Replays a rank's steps without its collectives. Where n ranks need longer for their n batches than one of them would
    need for the same batches one after the other, it reports by how much. `nn.DataParallel` has a check of its own,
    [data-parallel](data-parallel.md).

    ## Why it is bad
    Gradients cross a link in every step, whatever the model computes. With little work between two exchanges the link,
    or the host that drives it, is what the ranks wait for, and further GPUs make the training slower.

    ## Example
    ```python
    net = DistributedDataParallel(net, device_ids=[local_rank])
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        train_step(net, x, y)
    ```

    ## Use instead
    ```python
    for x, y in DataLoader(data, batch_size=512, sampler=sampler):
        train_step(net, x, y)  # or on one GPU, while the model is this small
    ```
    """

    code: ClassVar = "slower-than-one-gpu"
    costs: ClassVar = True
    kinds: ClassVar = frozenset({Kind.COLLECTIVE, Kind.STEP})

    def __init__(self) -> None:
        self.collectives = self.size_bytes = self.ranks = self.steps = 0
        self.site: Site = UNKNOWN_SITE

    def see(self, record: Record, trace: Trace) -> None:
        """Count collectives and steps."""
        if record.kind == Kind.STEP:
            self.steps += 1
            self.site = record.site
            return
        self.collectives += 1
        self.size_bytes += record.value
        self.ranks = max(self.ranks, int(dict(record.signature.detail).get("ranks", 1)))

    def findings(self, trace: Trace) -> list[Finding]:
        """None by itself: only a replay tells."""
        return []

    def candidates(self, trace: Trace) -> list[Finding]:
        """What is to be replayed: a rank of several with collectives in its steps."""
        replicas = any(note.code == "data-parallel" for note in trace.notes)
        if replicas or self.ranks < 2 or self.steps < MIN_STEPS or self.collectives < self.steps:
            return []
        each = self.size_bytes / self.steps
        return [
            Finding(
                self.code,
                self.severity,
                f"{plural(self.ranks, 'rank')} exchange {format_bytes(each)} a step and need longer for their batches "
                "than one GPU would need for all of them",
                "use one GPU while the work is this small, or give each rank a larger batch or gradient accumulation",
                self.site,
                times=self.steps,
                size_bytes=self.size_bytes,
                fix="one GPU",
            )
        ]
