"""Objects that are sent in batches and received by plain calls (pytorch#160342).

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
objects = [{"epoch": 3}, "name"] if rank == 0 else [None, None]
dist.barrier()
if rank == 0:
    dist.send_object_list(objects, 1, use_batch=True)  # finding: collective-deadlock
else:
    dist.recv_object_list(objects, 0)  # named
