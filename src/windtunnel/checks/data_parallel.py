"""The check `data-parallel`: one process for several GPUs, which help each other less than they could."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.units import plural, times

MIN_CHUNK = 8  # examples a device: with fewer, copying the model's parameters outweighs the work on any model


class DataParallel(NoteCheck):
    """One process that drives several GPUs, with less speed-up than they could give.

    ## What it does
    Reports `nn.DataParallel`: as `info` where it helps, as a warning where a batch gives fewer chunks than there are
    devices or fewer than eight examples a device.

    ## Why it is bad
    `nn.DataParallel` copies the parameters to every device and the results back to the first in each step, from one
    Python process whose threads take turns. The first device holds more than the others; with a small batch the copies
    take longer than the work. `DistributedDataParallel` runs one process a GPU and exchanges gradients only.

    ## Example
    ```python
    net = nn.DataParallel(net.cuda())
    ```

    ## Use instead
    ```python
    dist.init_process_group("nccl")
    net = DistributedDataParallel(net.to(local_rank), device_ids=[local_rank])
    ```
    """

    code: ClassVar = "data-parallel"
    costs: ClassVar = True
    fix: ClassVar = "one GPU"

    def judge(self, line: NotedLine) -> Severity:
        """Using it costs something; using it on crumbs costs more than it brings."""
        return self.severity if line.number("batch") < MIN_CHUNK * line.number("devices") else "info"

    def message(self, line: NotedLine) -> str:
        """How the work was divided."""
        devices, batch = line.number("devices"), line.number("batch")
        chunks = -(-batch // max(1, -(-batch // max(1, devices))))
        if chunks < devices:
            what = f"gives {plural(chunks, 'chunk')}: {plural(devices - chunks, 'device')} did nothing"
        else:
            what = f"gives each about {plural(-(-batch // max(1, devices)), 'example')}"
        return (
            f"nn.DataParallel ran {times(line.times)} on {plural(devices, 'device')} and copied the parameters to each "
            f"every time; a batch of {batch} {what}"
        )

    def advice(self, line: NotedLine) -> str:
        """What serves better."""
        if self.judge(line) == "info":
            return (
                "use one GPU where the work is this small; for more, `DistributedDataParallel` with one process a GPU"
            )
        return "use one GPU for batches this small, or a larger batch with `DistributedDataParallel`"
