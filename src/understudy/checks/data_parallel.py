"""The check `data-parallel`: several GPUs that help each other less than they could."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from understudy.checks._notes import Line, NoteCheck
from understudy.trace.finding import Severity
from understudy.trace.operation import Note
from understudy.trace.units import plural

MIN_CHUNK = 8  # examples a device: with fewer, copying the model's parameters outweighs the work on any model


class Remark(NamedTuple):
    """What is said of one rank of several, and how bad it is."""

    severity: Severity
    message: str
    advice: str


DISTRIBUTED = {
    "ddp-device-0": Remark(
        "warning",
        "the process of rank {rank} has opened a context on cuda:{device}, where rank {other} works: it takes memory "
        "from that rank, and from every other one that does the same",
        "call `torch.cuda.set_device(local_rank)` first, write `.cuda(local_rank)`, and load checkpoints with "
        "`map_location`",
    ),
    "ddp-same-device": Remark(
        "warning",
        "rank {rank} works on cuda:{device}, where rank {other} does: NCCL refuses two ranks on one GPU",
        "call `torch.cuda.set_device(local_rank)` before anything else, and pass `device_ids=[local_rank]`",
    ),
    "ddp-sampler": Remark(
        "warning",
        "the loader has no DistributedSampler: every rank trains on the same examples",
        "pass `sampler=DistributedSampler(data)` and call `sampler.set_epoch(epoch)`",
    ),
    "ddp-set-device": Remark(
        "info",
        "rank {rank} works on cuda:{device} and its current device is cuda:0: `.cuda()`, `torch.cuda.synchronize()` "
        "and collectives of objects go there",
        "call `torch.cuda.set_device(local_rank)` before `init_process_group`",
    ),
}


class DataParallel(NoteCheck):
    """Several GPUs that help each other less than they could.

    ## What it does
    Reports `nn.DataParallel`: as `info` where it serves, as a warning where a batch gives fewer chunks than there are
    devices or fewer than eight examples a device. Of runs with a process a GPU it reports ranks that open a context on
    a GPU where another rank works (cuda:0, mostly), two ranks on one GPU, a missing `DistributedSampler`, and, as
    `info`, a rank that works on another device than its current one.

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

    def group(self, note: Note) -> str:
        """One finding for each kind of trouble."""
        return str(dict(note.detail).get("what", "forward"))

    def judge(self, line: Line) -> Severity:
        """Using it costs something; using it on crumbs costs more than it brings."""
        if line.word("what") in DISTRIBUTED:
            return DISTRIBUTED[line.word("what")].severity
        return self.severity if line.number("batch") < MIN_CHUNK * line.number("devices") else "info"

    def message(self, line: Line) -> str:
        """How the work was divided."""
        if line.word("what") in DISTRIBUTED:
            numbers = {name: line.number(name) for name in ("rank", "device", "other")}
            return DISTRIBUTED[line.word("what")].message.format(**numbers)
        devices, batch = line.number("devices"), line.number("batch")
        chunks = -(-batch // max(1, -(-batch // max(1, devices))))
        if chunks < devices:
            what = f"gives {plural(chunks, 'chunk')}: {plural(devices - chunks, 'device')} had nothing to do"
        else:
            what = f"gives each about {plural(-(-batch // max(1, devices)), 'example')}"
        return (
            f"nn.DataParallel ran {plural(line.times, 'time')} on {plural(devices, 'device')}, and copied the "
            f"parameters to each every time; a batch of {batch} {what}"
        )

    def advice(self, line: Line) -> str:
        """What serves better."""
        if line.word("what") in DISTRIBUTED:
            return DISTRIBUTED[line.word("what")].advice
        if self.judge(line) == "info":
            return "`DistributedDataParallel`, one process a GPU, does the same without copying the parameters"
        return "use one GPU for batches this small, or a larger batch with `DistributedDataParallel`"
