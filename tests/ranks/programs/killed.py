"""Rank 1 is killed, as by the kernel when memory is short.

Runs with 2 ranks.
"""

import os
import signal

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
dist.all_reduce(value)  # finding: rank-ended
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(value)  # named
