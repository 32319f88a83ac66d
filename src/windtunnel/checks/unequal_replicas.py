"""The check `unequal-replicas`: replicas of a model that do not begin with the same weights."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class UnequalReplicas(NoteCheck):
    """Replicas of a model that begin with different weights.

    ## What it does
    Compares, before the first step of each optimizer, the parameters that several ranks hold replicas of: those of
    DistributedDataParallel, of FullyShardedDataParallel with NO_SHARD or HYBRID_SHARD, and of DTensors that are
    replicated over a dimension of their mesh (`fully_shard` with two dimensions). Reports the line that made them
    replicas. In a rehearsal without data there is nothing to compare.

    ## Why it is bad
    Only gradients are averaged: replicas that begin unlike stay unlike. Each rank trains a model of its own with
    gradients that are mostly of the others' weights, the loss falls more slowly, and a checkpoint holds one of them.

    ## Example
    ```python
    net = Net().cuda()  # torch was not seeded, or with another number on each rank
    fully_shard(net, mesh=init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard")))
    ```

    ## Use instead
    ```python
    torch.manual_seed(0)  # the same on every rank
    net = Net().cuda()
    fully_shard(net, mesh=init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard")))
    ```
    """

    code: ClassVar = "unequal-replicas"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2

    def message(self, line: NotedLine) -> str:
        """How many parameters, and on which ranks."""
        return (
            f"{line.number('differing')} of {line.number('parameters')} parameters (the first of shape "
            f"{line.word('shape')}) have other values on {line.word('others')} before the first step, though "
            f"{line.word('replicas')} hold replicas of one model: only their gradients are averaged"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return (
            "call `torch.manual_seed` with the same number on every rank before the model is made, load the same "
            "weights everywhere, or broadcast rank 0's: `sync_module_states=True` for FullyShardedDataParallel, "
            "`init_sync=True` for DistributedDataParallel, `dist.broadcast` for `fully_shard`"
        )
