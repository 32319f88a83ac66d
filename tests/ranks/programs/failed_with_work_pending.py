"""The second call differs; what the first one left unfinished follows from that."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


def step():
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x, async_op=True)
    dist.all_reduce(torch.ones(4 + rank, device="cuda"))  # finding: collective-mismatch


try:
    step()
finally:
    print(torch.zeros(1 << 20, device="cuda").sum().item())
dist.destroy_process_group()
