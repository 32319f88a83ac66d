"""The check `context-on-other-gpu`: a rank that opens a context on a GPU where another rank works."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine

FIXES = {
    "load": "load checkpoints with `map_location`: without it each tensor returns to the GPU that it was saved from",
    "objects": (
        "move tensors to the CPU before objects are gathered, broadcast or sent (`.cpu()`): they arrive on the GPU of "
        "the rank that sent them; or send them with the collectives of tensors"
    ),
    "": (
        "call `torch.cuda.set_device(local_rank)` first, write `.cuda(local_rank)`, and load checkpoints with "
        "`map_location`"
    ),
}
"""What to change, by what opened the context."""


class ContextOnOtherGpu(NoteCheck):
    """A rank that takes memory of a GPU where another rank works.

    ## What it does
    Reports ranks that open a CUDA context on a GPU where another rank works, usually cuda:0.

    ## Why it is bad
    A context takes hundreds of megabytes for as long as the process lives. When eight ranks all open one on cuda:0,
    that GPU holds seven contexts that it does not need, and runs out of memory first.

    ## Example
    ```python
    weights = torch.load("weights.pt")  # onto the GPU that they were saved from, cuda:0
    ```

    ## Use instead
    ```python
    torch.cuda.set_device(local_rank)
    weights = torch.load("weights.pt", map_location="cpu")
    ```
    """

    code: ClassVar = "context-on-other-gpu"
    costs: ClassVar = True

    def message(self, line: NotedLine) -> str:
        """Which rank, and where."""
        return (
            f"the process of rank {line.number('rank')} has opened a context on cuda:{line.number('device')}, where "
            f"rank {line.number('other')} works: each such context takes memory from that rank"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return FIXES[line.word("by")]
