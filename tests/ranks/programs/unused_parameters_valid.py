"""A head that takes no part in the loss, of which DistributedDataParallel was told.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Two heads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.first(x), self.second(x)


rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(Net().cuda(), device_ids=[rank], find_unused_parameters=True)
for _ in range(2):
    loss = net(torch.ones(2, 8, device="cuda"))[0].sum()
    loss.backward()
dist.destroy_process_group()
