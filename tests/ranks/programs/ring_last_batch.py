"""A ring of batches whose last rank has fewer rows, as at the end of an epoch.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine = torch.full((8 if rank < size - 1 else 6, 4), rank + 1.0, device="cuda")
theirs = torch.zeros_like(mine)
operations = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, theirs, (rank - 1) % size)]
for work in dist.batch_isend_irecv(operations):  # finding: collective-mismatch
    work.wait()
