"""Two ranks go on without the third, and one of them leaves.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank != 2:
    dist.shrink_group([2])
    dist.all_reduce(value)
    if rank == 0:
        dist.all_reduce(value)  # finding: collective-missing
