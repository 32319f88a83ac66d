"""Trains in one of several processes, once an argument, and writes what came out: worker.py RESULT TRAINING ...

A TRAINING is a JSON list: the strategy, the kind of data, options.
"""

import functools
import json
import os
import sys

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import housing, network

from windtunnel import torch as wt
from windtunnel.train import Checkpoints, Tensors, Trainer


def data(kind: str, batch_size: int):
    """101 rows as batches of `batch_size` over all processes."""
    inputs, target = housing()
    share = batch_size // int(os.environ.get("WORLD_SIZE", "1"))
    if kind == "tensors":
        return Tensors(inputs, target, batch_size=share, shuffle=False)
    if kind == "loader":
        return DataLoader(TensorDataset(inputs, target), share)
    if kind == "pairs":
        return DataLoader(list(zip(inputs, target, strict=True)), share)
    return [(inputs[i : i + share], target[i : i + share]) for i in range(0, len(inputs), share)]


def train(strategy: str, kind: str, options: dict) -> dict:
    model = network()
    fit = {"resume": options.pop("resume", False)}
    batch_size = options.pop("batch_size", 48)
    if options.pop("torchmetrics", False):
        fit["metrics"] = {"error": torchmetrics.MeanAbsoluteError()}
    if "folder" in options:
        options["checkpoint"] = Checkpoints(options.pop("folder"), every_steps=2)
    trainer = Trainer(options.pop("max_epochs", 3), strategy=strategy, progress=False, gradient_clip_val=1.0, **options)
    inputs, target = housing()
    optimizer = functools.partial(torch.optim.Adam, lr=0.01)
    history = trainer.fit(
        model, data(kind, batch_size), (inputs, target), loss=nn.MSELoss(), optimizer=optimizer, batch_size=7, **fit
    )
    outputs = torch.cat(trainer.predict(model, inputs, batch_size=7))
    vector = torch.cat([wt.to(trainer.placement.full(p), wt.cpu()).reshape(-1) for p in model.parameters()])
    return {
        "history": history,
        "weights": vector.tolist(),
        "outputs": outputs.flatten().tolist(),
        "devices": [str(device) for device in trainer.gpus],
        "world_size": trainer.placement.world_size,
    }


def main() -> None:
    result, *trainings = sys.argv[1:]
    torch.set_num_threads(1)
    facts = [train(*json.loads(training)) for training in trainings]
    if os.environ["RANK"] == "0":
        with open(result, "w", encoding="utf-8") as file:
            json.dump(facts, file)


if __name__ == "__main__":
    main()
