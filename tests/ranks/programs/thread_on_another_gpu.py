"""Objects are gathered in a thread, which nobody told its GPU: it works on cuda:0, where only rank 0 is.

Runs with 2 ranks. https://github.com/pytorch/pytorch/issues/115861
"""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


def gather(value: int) -> None:
    objects = [None] * size if rank == 0 else None
    dist.gather_object(value, objects)  # finding: collective-deadlock


def count() -> None:
    gather(torch.tensor(rank, device="cuda").item())  # finding: context-on-other-gpu


gather(rank)
with ThreadPoolExecutor(max_workers=1) as pool:
    pool.submit(count).result()
