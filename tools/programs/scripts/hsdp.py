"""FSDP2 with HSDP: parameters in shards along one dimension of a mesh of 2 x 2 GPUs, in replicas along the other.

windtunnel run --gpus 4xA100 --nproc-per-node 4 hsdp.py

The losses of four steps are those of one process on the CPU with the whole batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

STEPS = 4


def network() -> nn.Sequential:
    """A transformer of two layers, the same in each process."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(*layers, nn.Linear(32, 8))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, mean: Callable[[torch.Tensor], object]) -> list[float]:
    """Four steps of AdamW; their losses, each the mean over the processes."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach()
        mean(shown)
        losses.append(shown.item())
    return losses


def main() -> None:
    """Compare."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 6, 32), torch.randn(8, 6, 8)
    alone = train(network(), x, y, lambda loss: None)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = network().to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = [whole.chunk(ranks)[rank].to(device) for whole in (x, y)]
    losses = train(model, *mine, lambda loss: dist.all_reduce(loss, dist.ReduceOp.AVG))
    same = torch.allclose(torch.tensor(alone), torch.tensor(losses), rtol=1e-4)
    if rank == 0:
        print(f"{mesh}: {alone} on the CPU, {losses} on {ranks} GPUs: {'equal' if same else 'DIFFERENT'}")
    dist.destroy_process_group()
    sys.exit(not same)


if __name__ == "__main__":
    main()
