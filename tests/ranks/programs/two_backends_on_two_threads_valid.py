"""A thread gathers objects over gloo while the main thread trains over NCCL, as asynchronous checkpoints do.

Nothing orders the two threads' calls alike on both ranks, and nothing needs to: they belong to two backends.

Runs with 2 ranks.
"""

import os
import threading

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
gpu = torch.ones(1000, device="cuda")
dist.all_reduce(gpu)
plans = []


def save():
    for number in range(10):
        found = [None] * size
        dist.all_gather_object(found, (rank, number))
        plans.append(found)


thread = threading.Thread(target=save)
thread.start()
for _ in range(10):
    dist.all_reduce(gpu, op=dist.ReduceOp.AVG)
thread.join()
assert plans == [[(0, number), (1, number)] for number in range(10)], plans
assert gpu.eq(2).all()
dist.destroy_process_group()
