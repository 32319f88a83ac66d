"""Rank 1 waits for a message that is sent a minute later, for five seconds at most.

Runs with 2 ranks.
"""

import datetime
import os
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5))
value = torch.ones(4, device="cuda")
if rank == 0:
    time.sleep(60)
    dist.send(value, 1)
else:
    dist.recv(value, 0)  # finding: collective-timeout
