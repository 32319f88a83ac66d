"""torchmetrics' own objects in `fit`: updated on the device, computed once an epoch, over all processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import MulticlassAccuracy
from training import ADAM, housing, network

import windtunnel
from windtunnel.trace.operation import Kind
from windtunnel.train import Tensors, Trainer


def fitted(num_gpus: int) -> list[dict[str, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs, _ = housing()
    labels = inputs[:, :3].argmax(1)
    data = Tensors(inputs, labels, batch_size=20, shuffle=False)
    metrics = {"accuracy": MulticlassAccuracy(3, average="micro", validate_args=False)}
    trainer = Trainer(3, num_gpus, progress=False)
    history = trainer.fit(model, data, (inputs, labels), loss=nn.CrossEntropyLoss(), optimizer=ADAM, metrics=metrics)
    right = (torch.cat(trainer.predict(model, inputs)).argmax(1).cpu() == labels).float().mean()
    assert history[-1]["val_accuracy"] == pytest.approx(float(right))
    return history


# mission 48
@pytest.mark.parametrize("num_gpus", [0, 1, 2])
def test_an_accuracy_is_that_of_the_predictions(num_gpus):
    with windtunnel.emulate("2xV100"):
        history = fitted(num_gpus)
    assert 0 < history[0]["train_accuracy"] < history[-1]["train_accuracy"] <= 1


def waits_in_an_epoch(batch_size: int) -> int:
    with windtunnel.emulate("V100") as session:
        metric = MeanAbsoluteError()
        trainer = Trainer(1, 1, progress=False, graph=False)
        data = Tensors(*housing(100), batch_size=batch_size)
        trainer.fit(network(), data, loss=nn.MSELoss(), optimizer=ADAM, metrics={"error": metric})
        assert metric.device == torch.device("cuda", 0)
        return sum(record.kind == Kind.SYNCHRONIZE for record in session.trace)


def test_its_tensors_live_on_the_gpu_and_only_an_epoch_waits():
    assert waits_in_an_epoch(batch_size=50) == waits_in_an_epoch(batch_size=5)
