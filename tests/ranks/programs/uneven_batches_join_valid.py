"""The same under torch.distributed.algorithms.Join.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[rank])
with Join([net]):
    for _ in range(4 - rank):
        net(torch.ones(8, 4, device="cuda")).sum().backward()
