"""One rank leaves out a functional collective, whose result it does not need.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
shard = torch.ones(4, device="cuda")
if rank == 0:
    print(functional.all_gather_single(shard, 0, dist.group.WORLD).sum())  # finding: collective-missing
