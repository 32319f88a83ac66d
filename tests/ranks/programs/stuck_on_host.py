"""Rank 1 waits for a lock that nobody gives back.

Runs with 2 ranks. Stuck after 2 seconds.
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
lock = threading.Lock()
lock.acquire()
if rank == 1:
    lock.acquire()  # finding: rank-stuck
dist.all_reduce(value)  # named
