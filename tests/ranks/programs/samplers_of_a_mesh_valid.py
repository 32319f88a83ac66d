"""Two ranks share each replica, and read the same part. Runs with 4 ranks."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
data = TensorDataset(torch.arange(16.0))
sampler = DistributedSampler(data, num_replicas=2, rank=rank // 2)
loader = DataLoader(data, batch_size=4, sampler=sampler)
total = torch.zeros(1, device="cuda")
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        total += batch.cuda().sum()
dist.all_reduce(total)
dist.destroy_process_group()
