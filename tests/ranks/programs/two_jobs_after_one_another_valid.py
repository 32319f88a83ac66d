"""The default group is destroyed and made again.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for _ in range(2):
    value = torch.ones(2, device="cuda")
    dist.all_reduce(value)
    dist.destroy_process_group()
    dist.init_process_group("nccl")
