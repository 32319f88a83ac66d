"""Rank 1 is killed while it waits for rank 0, which then comes.

Runs with 2 ranks.
"""

import os
import signal
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
value = torch.ones(2, device="cuda")
dist.all_reduce(value)
if rank == 1:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
else:
    threading.Event().wait(1.5)
dist.all_reduce(value)  # finding: rank-ended
