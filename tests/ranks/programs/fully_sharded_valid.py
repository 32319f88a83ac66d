"""All ranks train and evaluate a model that FSDP2 has sharded.

Runs with 2 ranks.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    net(torch.ones(4, 8, device="cuda"))
