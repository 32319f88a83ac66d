"""A gather whose lists do not fit what the other rank brings.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine = torch.ones(3 + rank, device="cuda")
parts = [torch.empty(3, device="cuda") for _ in range(size)]
if rank:
    dist.all_gather([*parts[:1], torch.empty(4, device="cuda")], mine)  # finding: collective-mismatch
else:
    dist.all_gather(parts, mine)  # named
