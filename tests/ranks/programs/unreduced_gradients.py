"""A head that takes no part in the loss of the last step: the optimizer steps by each rank's own gradients.

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
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(Net().cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
for both in (True, False):
    optimizer.zero_grad()
    net(torch.full((2, 1), float(rank), device="cuda"), both).sum().backward()
    optimizer.step()  # finding: unused-parameters
