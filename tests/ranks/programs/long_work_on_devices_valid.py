"""Rank 1 gives its device work for longer than --stuck-after; it is slow and not stuck.

Runs with 2 ranks. Stuck after 1 seconds.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 1:
    for _ in range(30):
        threading.Event().wait(0.1)
        value.mul_(1.0)
dist.all_reduce(value)
