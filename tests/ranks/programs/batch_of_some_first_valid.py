"""A group's first call is a batch of two of its ranks; the others come with their first collective.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((4,), float(rank), device="cuda"), torch.empty(4, device="cuda")
for _ in range(2):
    if rank < 2:
        operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert theirs.tolist() == [1.0 - rank] * 4
    dist.barrier()
