"""What ProcessGroupNCCL says about a collective that exceeded its group's timeout.

The texts are those of `WorkNCCL::checkTimeout` and `WorkNCCL::handleException`
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

import math

from windtunnel.ranks.calls import Group, Operation
from windtunnel.ranks.flight_recorder import sizes

TYPES = {
    "all_reduce": "ALLREDUCE", "all_reduce_coalesced": "ALLREDUCE_COALESCED", "barrier": "ALLREDUCE",
    "broadcast": "BROADCAST", "reduce": "REDUCE", "all_gather": "ALLGATHER",
    "all_gather_into_tensor": "_ALLGATHER_BASE", "reduce_scatter": "REDUCE_SCATTER",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE", "all_to_all": "ALLTOALL", "all_to_all_single": "ALLTOALL_BASE",
    "gather": "GATHER", "scatter": "SCATTER", "send": "SEND", "recv": "RECV",
}  # fmt: skip
"""`opTypeToString`, by the names of `torch.distributed`; other collectives are coalesced ones."""
FAILED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
    "operations might run on corrupted/incomplete data."
)
TAKEN_DOWN = "To avoid data inconsistency, we are taking the entire process down."


def timeout(rank: int, number: int, operation: Operation, group: Group, times_ms: tuple[int, int]) -> str:
    """The error of a rank whose `number`-th call in the group exceeded its timeout."""
    inputs, outputs = (sum(map(math.prod, side)) for side in sizes(operation, group))
    limit_ms, ran_ms = times_ms
    return (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
        f"OpType={TYPES.get(operation.name, 'COALESCED')}, NumelIn={inputs}, NumelOut={outputs}, "
        f"Timeout(ms)={limit_ms}) ran for {ran_ms} milliseconds before timing out."
    )
