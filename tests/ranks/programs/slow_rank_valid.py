"""Rank 1 works on its host for a while; nothing is wrong.

Runs with 2 ranks.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
for _ in range(2):
    if rank == 1:
        threading.Event().wait(2.5)
    dist.all_reduce(value)
