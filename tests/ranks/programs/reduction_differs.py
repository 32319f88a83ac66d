"""One rank sums and one takes the largest: nothing hangs on GPUs, the values are wrong.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
if rank:
    dist.all_reduce(value, dist.ReduceOp.MAX)  # finding: collective-mismatch
else:
    dist.all_reduce(value, dist.ReduceOp.SUM)  # named
