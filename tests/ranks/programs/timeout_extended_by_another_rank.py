"""Rank 1 may wait for half an hour and rank 0, which waits, for ten minutes: what a rank adds is its own.

Runs with 2 ranks.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 1:
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(hours=1))
    time.sleep(1800)
    dist.barrier()  # named
else:
    dist.barrier()  # finding: collective-timeout
