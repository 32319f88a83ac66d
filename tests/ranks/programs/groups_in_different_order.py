"""Two groups of the same ranks, used in different order (nccl#1260).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
value = torch.ones(4, device="cuda")
if rank:
    dist.all_reduce(value, group=second)  # named
    dist.all_reduce(value, group=first)
else:
    dist.all_reduce(value, group=first)  # finding: collective-deadlock
    dist.all_reduce(value, group=second)
