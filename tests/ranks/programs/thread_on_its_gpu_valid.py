"""Objects are gathered in a thread that is told its GPU.

Runs with 2 ranks. https://github.com/pytorch/pytorch/issues/115861
"""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


def gather() -> None:
    torch.cuda.set_device(rank)
    objects = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank}, objects)


gather()
with ThreadPoolExecutor(max_workers=1) as pool:
    pool.submit(gather).result()
