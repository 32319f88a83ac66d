"""A larger message than its receiver expects (nccl#1938), received before the next collective.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
if rank == 0:
    dist.isend(torch.ones(2, 10, device="cuda"), 1).wait()  # named
else:
    dist.irecv(torch.zeros(2, 8, device="cuda"), 0).wait()  # finding: collective-mismatch
dist.barrier()
