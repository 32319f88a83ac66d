"""Trainings in two processes against the same in one: process_cases.py RESULT writes those that differ."""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windtunnel.train import Module, Tensors, Trainer

SGD = functools.partial(torch.optim.SGD, lr=0.1)
X = torch.randn(30, 3, generator=torch.Generator().manual_seed(3))
Y = X.sum(1, keepdim=True)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, outputs, target):
        return (torch.exp(-self.weight) * (outputs - target) ** 2).mean() + self.weight


class Scratch(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(3, 1), torch.zeros(3, 1, requires_grad=True)

    def forward(self, inputs):
        return self.layer(inputs) + inputs @ self.weight

    def loss(self, outputs, target):
        return ((outputs - target) ** 2).mean()

    def scratch_parameters(self):
        return [self.weight]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
        self.layers[2].weight = self.layers[0].weight
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.scale * self.layers(inputs)[:, :1]


class Kept:
    def __init__(self) -> None:
        self.reset()

    def reset(self):
        self.values = []

    def update(self, outputs, target):
        self.values.append(target.flatten())

    def compute(self):
        return torch.cat(self.values).max()


def train(strategy: str, batch_size: int, model: nn.Module, loss: Any = None, **options: Any) -> dict[str, Any]:
    """What it came to: the history, and all that was trained, whole."""
    fit = {"metrics": {"largest": Kept()}} if loss is not None else {}
    trainer = Trainer(3, progress=False, strategy=strategy, **options)
    data = Tensors(X, Y, batch_size=batch_size, shuffle=False)
    history = trainer.fit(model, data, loss=loss, optimizer=SGD, **fit)
    held = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    return {"history": history, "trained": [trainer.placement.full(p).flatten() for p in held], "model": model}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


class Table(nn.Module):
    """A lookup whose gradient has the rows that were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)
        self.last = nn.Linear(3, 1)

    def forward(self, inputs):
        return self.last(self.table((inputs[:, 0].abs() * 10).long() % 5))


CASES: dict[str, tuple[Any, ...]] = {
    "loss": (network, Weighted, {}),
    "metric": (network, nn.MSELoss, {}),
    "scratch": (Scratch, lambda: None, {}),
    "clipped": (network, Weighted, {"gradient_clip_val": 0.1}),
    "accumulated": (network, Weighted, {"accumulate": 2}),
    "sparse": (Table, nn.MSELoss, {"accumulate": 2}),
    "tied": (Tied, nn.MSELoss, {"gradient_clip_val": 0.5}),
    "bf16": (network, nn.MSELoss, {"precision": "bf16"}),
    "fp16": (network, nn.MSELoss, {"precision": "fp16", "gradient_clip_val": 0.5}),
}


def compare(strategy: str, make: Any, loss: Any, options: dict[str, Any]) -> str | None:
    torch.manual_seed(0)
    alone = make()
    several = copy.deepcopy(alone)
    if isinstance(several, Scratch):
        several.weight = several.weight.detach().clone().requires_grad_()
    try:
        theirs = train(strategy, 4, several, loss(), **options)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:300]
    fp16 = options.get("precision") == "fp16"  # overflows where a rank's share of a batch does, so ddp is the measure
    mine = train("ddp" if fp16 else "single", 4 if fp16 else 8, alone, loss(), **options)
    low = 2e-2 if "precision" in options else 1e-5
    for one, other in zip(mine["trained"], theirs["trained"], strict=True):
        if not torch.allclose(one, other, rtol=low, atol=low):
            return f"weights {one.tolist()} and {other.tolist()}"
    for one, other in zip(mine["history"], theirs["history"], strict=True):
        if not all(abs(other[name] - value) <= low * max(1, abs(value)) for name, value in one.items()):
            return f"{one} and {other}"
    return None


def buffers() -> str | None:
    """Running means under FSDP are those of rank 0, as under DDP."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    train("fsdp", 4, model, nn.MSELoss())
    found: list[Any] = [None, None]
    dist.all_gather_object(found, model[1].running_mean.tolist())
    return None if found[0] == found[1] else str(found)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    strategies = ["ddp"] + (["fsdp"] if hasattr(torch.cpu.Stream, "record_event") else [])
    results = {
        f"{strategy} {name}": compare(strategy, *case) for strategy in strategies for name, case in CASES.items()
    }
    if len(strategies) > 1:
        results["fsdp buffers"] = buffers()
    wrong = {name: result for name, result in results.items() if result is not None}
    found: list[Any] = [None, None]
    dist.all_gather_object(found, wrong)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"cases": len(results), "wrong": found}, file)
    dist.barrier()
    os._exit(0)  # the control groups of so many Trainers end with the process


if __name__ == "__main__":
    main()
