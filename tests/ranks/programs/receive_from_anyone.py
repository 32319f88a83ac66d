"""NCCL cannot receive from anyone.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.full((2,), float(rank), device="cuda")
if rank:
    dist.send(value, 0)
else:
    senders = {dist.recv(value) for _ in range(2)}  # finding: rank-ended
