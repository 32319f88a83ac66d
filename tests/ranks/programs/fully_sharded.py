"""Rank 0 evaluates a model that FSDP2 has sharded, alone.

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
net(torch.ones(4, 8, device="cuda")).sum().backward()
if rank == 0:
    net.eval()
    net(torch.ones(4, 8, device="cuda"))  # finding: collective-missing
