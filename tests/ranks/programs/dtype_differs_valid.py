"""All ranks reduce in one type.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
norm = torch.ones(4, device="cuda", dtype=torch.float16 if rank == 2 else torch.float32)
norm = norm.float()
dist.all_reduce(norm)
assert norm.tolist() == [3.0] * 4
