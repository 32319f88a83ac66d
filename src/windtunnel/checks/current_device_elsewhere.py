"""The check `current-device-elsewhere`: a rank whose current device is not the one it works on."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class CurrentDeviceElsewhere(NoteCheck):
    """A rank that works on a device other than its current one.

    ## What it does
    Reports `DistributedDataParallel` of a model that is on a GPU other than the first, in a process whose current
    device is cuda:0.

    ## Why it is bad
    `.cuda()` without a number, `torch.cuda.synchronize()` and collectives of objects go to the current device, which is
    another rank's: see `context-on-other-gpu`.

    ## Example
    ```python
    net = DistributedDataParallel(net.to(local_rank), device_ids=[local_rank])
    ```

    ## Use instead
    ```python
    torch.cuda.set_device(local_rank)
    net = DistributedDataParallel(net.cuda(), device_ids=[local_rank])
    ```
    """

    code: ClassVar = "current-device-elsewhere"
    severity: ClassVar[Severity] = "info"

    def message(self, line: NotedLine) -> str:
        """Which rank, and where."""
        return (
            f"rank {line.number('rank')} works on cuda:{line.number('device')} and its current device is cuda:0: "
            "`.cuda()`, `torch.cuda.synchronize()` and collectives of objects go there"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "call `torch.cuda.set_device(local_rank)` before `init_process_group`"
