"""Rank 1 prepares data for half an hour while rank 0 waits, for ten minutes at most.

Runs with 2 ranks.
"""

import os
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 1:
    time.sleep(1800)
    dist.barrier()  # named
else:
    dist.barrier()  # finding: collective-timeout
