"""The check `shared-gpu`: two ranks of a group on one GPU, which NCCL refuses."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class SharedGpu(NoteCheck):
    """Two ranks of a group that work on one GPU, which NCCL refuses.

    ## What it does
    Reports ranks whose collectives run on the GPU where another rank of their group works; as `info` where the run lets
    ranks share GPUs (`--share-gpus`).

    ## Why it is bad
    NCCL ends such a program at its first collective: "Duplicate GPU detected". Only a run with `--share-gpus` goes on,
    and its times are those of ranks with a GPU each.

    ## Example
    ```python
    dist.init_process_group("nccl")
    net = DistributedDataParallel(net.cuda())  # every rank on cuda:0
    ```

    ## Use instead
    ```python
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    net = DistributedDataParallel(net.cuda(), device_ids=[local_rank])
    ```
    """

    code: ClassVar = "shared-gpu"
    severity: ClassVar[Severity] = "error"

    def judge(self, line: NotedLine) -> Severity:
        """Nothing is wrong where the run allows it; on hardware the program ends."""
        return "info" if line.number("allowed") else self.severity

    def message(self, line: NotedLine) -> str:
        """Which rank, and where."""
        return (
            f"ranks {line.number('other')} and {line.number('rank')} both work on cuda:{line.number('device')}: NCCL "
            "refuses "
            "two ranks on one GPU"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "call `torch.cuda.set_device(local_rank)` before anything else, and pass `device_ids=[local_rank]`"
