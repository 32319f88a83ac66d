"""The check `collective-mismatch`: ranks whose calls are paired with one another and differ."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import RankCheck


class CollectiveMismatch(RankCheck):
    """Ranks call different collectives, or the same one with different tensors.

    ## What it does
    Compares what the ranks of a process group call, call by call: the operation, the dtype, the number of elements
    (for lists and splits those of each pair of ranks), the root and the reduction. Each message is compared with its
    receive: the bytes, and the dtype unless one side has bytes (`uint8`, `int8`, `bool`). Groups of one name must have
    the same members. It shows what each rank called and where, and the run ends there.

    ## Why it is bad
    NCCL pairs the n-th call of one rank with the n-th of every other and compares nothing. Ranks that disagree hang
    until the watchdog ends the job after ten minutes or more, or read one another's memory wrongly and go on with
    wrong values. Its message names one rank's operation and no line. A message that is received into a larger tensor
    hangs, or fills a part of it; into a smaller one it passes, as long as NCCL's buffers take the rest.

    ## Example
    ```python
    if rank == 0:
        dist.all_reduce(loss)
    dist.broadcast(weights, 0)
    ```

    ## Use instead
    ```python
    dist.all_reduce(loss)
    if rank == 0:
        print(loss / dist.get_world_size())
    dist.broadcast(weights, 0)
    ```
    """

    code: ClassVar = "collective-mismatch"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.word("sender"):
            return (
                "receive into a tensor of the size and dtype that is sent: drop or pad the last, smaller batch "
                "(drop_last=True), or send the shape first"
            )
        if line.number("threads"):
            return (
                "give each thread a process group of its own, dist.new_group(backend=...), and pass it to what the "
                "thread calls (process_group= of dcp.async_save): nothing orders two threads' calls alike on all ranks"
            )
        if line.word("what") == "members":
            return (
                "let every rank make all groups in the same order, also those that it is not in, or pass "
                "use_local_synchronization=True: groups that each rank makes for itself have one name"
            )
        if line.word("what") == "operation":
            return "let every rank of the group make the same calls in the same order, whatever a rank's data are"
        return "let every rank of the group pass tensors of the same size and dtype, the same root and reduction"
