"""A thread that plans a checkpoint has a group of its own, apart from the main thread's barrier (KempnerForge#105).

Runs with 2 ranks.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
own = dist.new_group(backend="gloo")
first = threading.Event()


def save():
    if rank == 1:
        first.wait(1.0)
    found = [None] * size
    dist.all_gather_object(found, "plan", group=own)


thread = threading.Thread(target=save)
thread.start()
if rank == 0:
    first.wait(1.0)
dist.barrier()
thread.join()
