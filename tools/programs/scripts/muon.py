"""nanochat's optimizer on several GPUs: gradients are reduced, and states are in shards, inside the optimizer.

windtunnel run --gpus 2xA100 --nproc-per-node 2 muon.py

The weights after four steps are those of one process on the CPU, which averages the gradients itself.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from nanochat.optim import MuonAdamW
from torch import nn
from torch.nn import functional as F

STEPS = 4


class Network(nn.Module):
    """An embedding, three square matrices, two wide ones and a scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(64, 32)
        self.square = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(32, 64, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of 64 tokens."""
        x = self.embed(tokens) * self.scale
        for layer in self.square:
            x = x + F.relu(layer(x)).square()
        return sum(layer(x) for layer in self.wide)

    def optimizer(self) -> MuonAdamW:
        """Muon for the matrices, AdamW for the rest."""
        adamw = {"kind": "adamw", "lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0}
        muon = {"kind": "muon", "lr": 0.02, "momentum": 0.95, "ns_steps": 5, "beta2": 0.9, "weight_decay": 0.01}
        kinds = [
            {**adamw, "params": [self.embed.weight]},
            {**adamw, "params": [self.scale]},
            {**muon, "params": [layer.weight for layer in self.square]},
            {**muon, "params": [layer.weight for layer in self.wide]},
        ]
        return MuonAdamW(kinds)


def backward(model: Network, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of the next token, and the gradients."""
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def main() -> None:
    """Compare."""
    torch.manual_seed(1)
    tokens = torch.randint(0, 64, (8, 17))
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    reference = Network()
    optimizer = reference.optimizer()
    expected = []
    for _ in range(STEPS):
        losses = [backward(reference, part) for part in tokens.chunk(ranks)]
        for weight in reference.parameters():
            weight.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        expected.append(torch.stack(losses).mean().item())

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    model = Network().to(device)
    optimizer = model.optimizer()
    mine = tokens.chunk(ranks)[rank].to(device)
    found = []
    for _ in range(STEPS):
        loss = backward(model, mine)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        found.append(loss.item())
    same = torch.allclose(torch.tensor(expected), torch.tensor(found), rtol=1e-3)
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    same = same and all(torch.allclose(one.cpu(), other, rtol=1e-3, atol=1e-4) for one, other in pairs)
    if rank == 0:
        print(f"{expected} on the CPU, {found} on {ranks} GPUs, and the weights: {'equal' if same else 'DIFFERENT'}")
    dist.destroy_process_group()
    sys.exit(not same)


if __name__ == "__main__":
    main()
