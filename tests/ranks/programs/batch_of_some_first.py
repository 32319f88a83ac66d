"""A group's first call is a batch of two of its ranks, and the others never come (pytorch#74701).

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((4,), float(rank), device="cuda"), torch.empty(4, device="cuda")
if rank < 2:
    operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):  # finding: collective-missing
        work.wait()
