"""`torch.distributed.pipelining`: a model in stages, a stage a GPU, under one of its schedules.

windtunnel run --gpus 2xA100 --nproc-per-node 2 pipelining.py GPipe

The losses of three steps are those of one process on the CPU.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn import functional as F

STEPS, MICROBATCHES = 3, 4


def network(stages: int) -> list[nn.Module]:
    """The same layers in each process, in so many parts."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(stages)]


def alone(parts: list[nn.Module], x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The whole network in one process: the mean loss of the microbatches."""
    model = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Compare."""
    kind = pipelining.schedules.get_schedule_class(sys.argv[1])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    stages = ranks * 2 if several else ranks
    torch.manual_seed(1)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    expected = alone(network(stages), x, y)

    numbers = range(rank, stages, ranks)
    parts = [network(stages)[number].to(device) for number in numbers]
    mine = [pipelining.PipelineStage(part, number, stages, device) for part, number in zip(parts, numbers, strict=True)]
    schedule = kind(mine if several else mine[0], MICROBATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD([weight for part in parts for weight in part.parameters()], 0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        seen: list[torch.Tensor] = []
        last = {"target": y.to(device), "losses": seen} if rank == ranks - 1 else {}
        schedule.step(*([x.to(device)] if rank == 0 else []), **last)
        optimizer.step()
        losses.append(torch.stack(seen).mean().item() if seen else 0.0)
    same = rank != ranks - 1 or torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-4)
    if rank == ranks - 1:
        print(f"{sys.argv[1]}: {expected} on the CPU, {losses} on {ranks} GPUs: {'equal' if same else 'DIFFERENT'}")
    dist.destroy_process_group()
    sys.exit(not same)


if __name__ == "__main__":
    main()
