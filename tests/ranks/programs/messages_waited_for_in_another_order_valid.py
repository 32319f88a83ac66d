"""Receives are waited for in the reverse of the order in which they were posted, beside work on other streams."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
side = torch.cuda.Stream()
if rank == 0:
    left, right = torch.ones(2048, 2048, device="cuda"), torch.full((1 << 20,), 2.0, device="cuda")
    for _ in range(8):
        left = left @ left / 2048
    dist.isend(left, 1).wait()
    dist.isend(right, 1).wait()
else:
    left, right = torch.empty(2048, 2048, device="cuda"), torch.empty(1 << 20, device="cuda")
    first, second = dist.irecv(left, 0), dist.irecv(right, 0)
    with torch.cuda.stream(side):
        other = torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    second.wait()
    first.wait()
    assert (left.sum().item(), right.sum().item()) == (2048.0**2, 2.0 * (1 << 20))
torch.cuda.synchronize()
dist.destroy_process_group()
