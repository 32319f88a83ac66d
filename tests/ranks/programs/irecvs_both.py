"""Both ranks post their receive before they send: what is sent stands behind it.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
mine, theirs = torch.full((4,), float(rank), device="cuda"), torch.empty(4, device="cuda")
receiving = dist.irecv(theirs, 1 - rank)  # finding: collective-deadlock
sending = dist.isend(mine, 1 - rank)
sending.wait()
receiving.wait()
