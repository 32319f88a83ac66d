"""One of two groups works at length while the other is done.

Runs with 4 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
value = torch.ones(4, device="cuda")
for _ in range(20 if rank < 2 else 1):
    dist.all_reduce(value, group=groups[rank // 2])
dist.barrier()
