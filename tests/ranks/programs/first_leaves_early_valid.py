"""Rank 0, where the store is, has ended when the others make the communicators of their messages.

Runs with 4 ranks.
"""

import os
import subprocess

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value, other = torch.full((1,), float(rank), device="cuda"), torch.empty(1, device="cuda")
dist.all_reduce(value)
if rank:
    subprocess.run(["sleep", "1"], check=True)
    left, right = (rank - 2) % 3 + 1, rank % 3 + 1
    if rank == 1:
        dist.send(value, right)
        dist.recv(other, left)
    else:
        dist.recv(other, left)
        dist.send(value, right)
    assert other.item() == 6.0
