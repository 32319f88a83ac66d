"""All weights are filled after to_empty."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)

    def forward(self, x):
        return self.norm(self.linear(x))


def fill(module):
    """What a library calls with each module: it knows linear layers and norms."""
    if isinstance(module, (torch.nn.Linear, torch.nn.RMSNorm)):
        module.reset_parameters()


with torch.device("meta"):
    net = Net()
fully_shard(net)
net.to_empty(device="cuda")
net.apply(fill)
loss = net(torch.ones(2, 8, device="cuda")).sum()
loss.backward()
dist.destroy_process_group()
