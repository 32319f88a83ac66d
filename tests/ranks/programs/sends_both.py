"""Both ranks send first.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.ones(4, device="cuda"), torch.empty(4, device="cuda")
dist.send(mine, 1 - rank)  # finding: collective-deadlock
dist.recv(theirs, 1 - rank)
