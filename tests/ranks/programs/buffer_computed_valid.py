"""The buffer is computed again after to_empty."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("frequencies", 1 / 100 ** (torch.arange(64) / 64), persistent=False)

    def forward(self, x):
        return self.linear(x) * self.frequencies.cos()


weights = Net().state_dict()
with torch.device("meta"):
    net = Net()
net.to_empty(device="cuda")
net.load_state_dict(weights)
net.frequencies.copy_(1 / 100 ** (torch.arange(64, device="cuda") / 64))
loss = net(torch.ones(2, 64, device="cuda")).sum()
dist.all_reduce(loss.detach())
dist.destroy_process_group()
