"""The check `samplers-disagree`: ranks whose samplers do not split one and the same epoch."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.ranks.words import lines


class SamplersDisagree(NoteCheck):
    """Samplers of one epoch that do not fit together.

    ## What it does
    Compares what the ranks told their `DistributedSampler` of an epoch: the number of replicas, the rank, `shuffle`
    and, where it shuffles, the seed and the epoch. Reports the line that reads the loader if they differ, or if the
    ranks given do not cover all parts equally often. Ranks that share a model (tensor parallel) may read the same part.

    ## Why it is bad
    Each rank takes every n-th example of an order that all must agree on. With another seed or epoch on one rank,
    examples come twice in an epoch and others never; with the same rank twice, a part is never trained on. Nothing
    fails, the loss only falls more slowly.

    ## Example
    ```python
    sampler = DistributedSampler(data, seed=int(time.time()))  # another number on each rank
    ```

    ## Use instead
    ```python
    sampler = DistributedSampler(data, seed=0)
    sampler.set_epoch(epoch)  # on every rank, at the beginning of each epoch
    ```
    """

    code: ClassVar = "samplers-disagree"

    def message(self, line: NotedLine) -> str:
        """In what, with the values of all ranks."""
        return (
            f"the samplers of pass {line.number('number')} over this loader differ in {WHAT[line.word('what')]}: "
            f"{lines(line.notes[0])}"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return FIXES[line.word("what")]


WHAT = {
    "replicas": "the number of replicas",
    "rank": "how often each part is read",
    "shuffle": "whether they shuffle",
    "seed": "the seed",
    "epoch": "the epoch",
}
FIXES = {
    "replicas": "give every rank the same `num_replicas`, or leave it out: the size of the default group",
    "rank": "give each rank its own `rank` below `num_replicas`, or leave both out: those of the default group",
    "shuffle": "give every rank the same `shuffle`",
    "seed": "give every rank the same `seed`: it decides the order, and `rank` the part of it",
    "epoch": "call `sampler.set_epoch(epoch)` on every rank with the same number",
}
