"""A thread that plans a checkpoint and a barrier of the main thread meet in one backend (KempnerForge#104).

With "cpu:gloo,cuda:nccl" objects and barriers both go over gloo. Nothing orders the two threads' calls alike on both
ranks; here rank 0 is first in the thread and rank 1 first in the barrier.

Runs with 2 ranks.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
first = threading.Event()


def save():
    if rank == 1:
        first.wait(1.0)
    found = [None] * size
    dist.all_gather_object(found, "plan")  # named


thread = threading.Thread(target=save)
thread.start()
if rank == 0:
    first.wait(1.0)
dist.barrier()  # finding: collective-mismatch
thread.join()
