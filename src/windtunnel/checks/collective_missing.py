"""The check `collective-missing`: a rank that ended while others wait in a collective."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import RankCheck


class CollectiveMissing(RankCheck):
    """A rank ended without making a call that other ranks wait in.

    ## What it does
    Reports a rank whose program ended normally while others wait for it in a collective, or for a message. It shows
    where they wait and which call of the group was that rank's last, and the run ends there.

    ## Why it is bad
    The ranks that wait hang until the watchdog ends the job, often after the last step, where nobody looks any more.
    The usual cause is data that do not divide evenly: one rank has a batch less and leaves the loop a step earlier.

    ## Example
    ```python
    for batch in loader:  # rank 0 has 13 batches, rank 1 has 12
        loss = net(batch).mean()
        loss.backward()
    ```

    ## Use instead
    ```python
    sampler = DistributedSampler(data, drop_last=True)  # as many examples for each rank
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    ```
    """

    code: ClassVar = "collective-missing"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.number("backward"):
            return (
                "give every rank as many batches: DistributedSampler with drop_last=True, or "
                "torch.distributed.algorithms.Join around the loop"
            )
        return "let every rank make this call, or none: loops of ranks must have as many steps"
