"""Uneven batches, divided by the ranks that are left: the reducer asks a collective's Work (pytorch#42577)."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(4, 2, bias=False).cuda(), device_ids=[rank])
seen = []
with net.join(divide_by_initial_world_size=False):
    for _ in range(2 + rank):
        net.zero_grad()
        net(torch.full((2, 4), rank + 1.0, device="cuda")).sum().backward()
        seen.append(net.module.weight.grad[0, 0].item())
assert seen == [3.0, 3.0, 4.0][: 2 + rank]
