"""A gather of different sizes, which every rank knows.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine = torch.full((3 + rank,), float(rank), device="cuda")
parts = [torch.empty(3 + other, device="cuda") for other in range(size)]
dist.all_gather(parts, mine)
assert [part.tolist() for part in parts] == [[0.0] * 3, [1.0] * 4]
