"""new_group is called by two ranks, and a third reduces in the world (nccl#1324).

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
if rank < 2:
    group = dist.new_group([0, 1])
    dist.all_reduce(value, group=group)
if rank == 0:
    dist.all_reduce(value)  # finding: collective-mismatch
else:
    dist.broadcast(value, 1)  # named
