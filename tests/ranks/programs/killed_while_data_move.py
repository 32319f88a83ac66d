"""Rank 1 is killed in the middle of a collective, while all ranks exchange 64 MiB at a time.

Runs with 3 ranks.
"""

import os
import signal
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(16 << 20, device="cuda")
if rank == 1:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    dist.all_reduce(value)  # finding: rank-ended
