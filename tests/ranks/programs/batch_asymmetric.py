"""Rank 0 expects a message in its batch that rank 1 has not in its own (nccl#2130).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((1,), float(rank), device="cuda"), torch.empty(1, device="cuda")
operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
for work in dist.batch_isend_irecv(operations[rank:]):  # finding: collective-deadlock
    work.wait()
dist.barrier()  # named
