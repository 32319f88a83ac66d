"""Two losses of one model, each with a backward pass and an optimizer of its own: the second finishes the reduction.

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
net = DistributedDataParallel(Net().cuda(), device_ids=[rank])
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net.module.first, net.module.second)]
for _ in range(2):
    losses = [out.sum() for out in net(torch.ones(2, 8, device="cuda"))]
    for loss, optimizer in zip(losses, optimizers, strict=True):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
