"""The checkpointed layer is used twice, and each use has a backward of its own."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True))


net = DistributedDataParallel(Net().cuda(), device_ids=[rank])
x = torch.ones(4, 8, device="cuda", requires_grad=True)
loss = net(x).sum() + net(2 * x).sum()
loss.backward()  # finding: known-error
dist.destroy_process_group()
