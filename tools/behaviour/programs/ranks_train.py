"""Two ranks: DistributedDataParallel, collectives, and sharded parameters."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)


def say(value: object) -> None:
    """One line of this rank, in one piece."""
    os.write(1, f"{rank} {value}\n".encode())


dist.init_process_group("nccl")
torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16) for _ in range(3)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 16, device="cuda") + rank).square().mean().backward()
    optimizer.step()
say(sum(p.sum().item() for p in model.parameters()))
sharded = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(2)]).cuda()
fully_shard(sharded)
sharded(torch.ones(2, 16, device="cuda")).sum().backward()
say(torch.cuda.max_memory_allocated())
parts = [torch.zeros(2, device="cuda") for _ in range(2)]
dist.all_gather(parts, torch.full((2,), float(rank), device="cuda"))
say(parts)
dist.destroy_process_group()
