"""Two ranks train for six steps; each says at the end what its weights are. Runs with 2 ranks."""

import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    torch.manual_seed(10 * step + rank)
    net(torch.randn(4, 8, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = net.module.weight.detach().cpu()
finite = bool(weights.isfinite().all())
print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]} {finite}", flush=True)
dist.destroy_process_group()
