"""NCCL's watchdog is told to do nothing, so that a collective ends however late.

Runs with 2 ranks.
"""

import os
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
dist.init_process_group("nccl")
value = torch.ones(4, device="cuda")
if rank == 1:
    time.sleep(1800)
dist.all_reduce(value)
assert value.tolist() == [2.0] * 4
