"""Both ranks have as many batches.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[rank])
for _ in range(4):
    net(torch.ones(8, 4, device="cuda")).sum().backward()
dist.destroy_process_group()
