"""Rank 2 leaves by os._exit with a code.

Runs with 3 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
dist.all_reduce(value)  # finding: rank-ended
if rank == 2:
    os._exit(3)
dist.barrier()  # named
