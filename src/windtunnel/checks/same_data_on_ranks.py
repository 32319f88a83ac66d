"""The check `same-data-on-ranks`: a loader that gives every rank the same examples."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine


class SameDataOnRanks(NoteCheck):
    """A loader from which every rank gets the same examples.

    ## What it does
    Reports a `DataLoader` that is read for training by one of several ranks and has no `DistributedSampler`.

    ## Why it is bad
    Every rank trains on all examples: an epoch takes as long as on one GPU, and the gradients that are averaged are of
    the same examples.

    ## Example
    ```python
    loader = DataLoader(data, batch_size=64, shuffle=True)
    ```

    ## Use instead
    ```python
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    sampler.set_epoch(epoch)  # at the beginning of each
    ```
    """

    code: ClassVar = "same-data-on-ranks"

    def message(self, line: NotedLine) -> str:
        """Which rank, and where."""
        return "the loader has no DistributedSampler: every rank trains on the same examples"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "pass `sampler=DistributedSampler(data)` and call `sampler.set_epoch(epoch)`"
