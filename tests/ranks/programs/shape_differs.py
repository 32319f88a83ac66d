"""The last batch of one rank is smaller (pytorch#118369).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
scores = torch.ones(8 - rank, device="cuda")
if rank == 0:
    dist.all_reduce(scores)  # named
else:
    dist.all_reduce(scores)  # finding: collective-mismatch
