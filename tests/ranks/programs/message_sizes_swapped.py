"""Two messages that are received in the other order: each has the size of the other.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
small, large = torch.ones(3, device="cuda"), torch.ones(5, device="cuda")
if rank == 0:
    dist.send(small, 1)
    dist.send(large, 1)
else:
    dist.recv(large, 0)  # finding: collective-mismatch
    dist.recv(small, 0)
