"""A branch that is used from the third step on."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # One parameter each: PyTorch takes several unused ones in the order of their addresses.
        self.one, self.two = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1, bias=False)

    def forward(self, x, both):
        return self.one(x) + self.two(x) if both else self.one(x)


net = DistributedDataParallel(Net().cuda(), device_ids=[rank], find_unused_parameters=True)
for step in range(4):
    net(torch.ones(4, 8, device="cuda"), step >= 2).sum().backward()
dist.destroy_process_group()
