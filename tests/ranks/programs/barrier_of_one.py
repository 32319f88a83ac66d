"""A barrier that only rank 0 calls (sglang#33289: a save on rank 0).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
if rank == 0:
    dist.barrier()  # named
dist.all_reduce(value)  # finding: collective-mismatch
