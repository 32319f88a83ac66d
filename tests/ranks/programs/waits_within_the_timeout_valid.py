"""Rank 1 prepares data for half an hour while rank 0 waits, for an hour at most.

Runs with 2 ranks.
"""

import datetime
import os
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1))
value = torch.ones(4, device="cuda")
dist.all_reduce(value)
if rank == 1:
    time.sleep(1800)
dist.barrier()
group = dist.new_group([0, 1], timeout=datetime.timedelta(minutes=1))
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(hours=1), group)
if rank == 0:
    time.sleep(1800)
dist.all_reduce(value, group=group)
assert value.tolist() == [4.0] * 4
