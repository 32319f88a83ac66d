"""Strategies of several processes in a group of one, which this process is."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from understudy.errors import UsageError
from understudy.train import Callback, Trainer

SGD = functools.partial(torch.optim.SGD, lr=0.05)
X = torch.arange(12.0).view(12, 1) / 12
Y = 2 * X


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def fit(model: nn.Module, strategy: str, data=(X, Y), callbacks=()) -> Trainer:
    trainer = Trainer(2, progress=False, strategy=strategy, callbacks=callbacks, seed=0)
    trainer.fit(model, data, loss=nn.MSELoss(), optimizer=SGD, batch_size=4)
    return trainer


def test_fsdp_refuses_sparse_gradients():
    model = nn.Sequential(nn.Embedding(12, 2, sparse=True), nn.Flatten(), nn.Linear(2, 1))
    with pytest.raises(UsageError, match="shards dense gradients, and this model has an embedding with sparse=True"):
        fit(model, "fsdp", (torch.arange(12).view(12, 1), Y))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_freezing_in_a_callback_is_refused(strategy):
    class Freezes(Callback):
        def on_epoch_end(self, trainer, metrics):
            model[0].requires_grad_(False)

    model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
    with pytest.raises(UsageError, match="one has been frozen since: freeze it before"):
        fit(model, strategy, callbacks=[Freezes()])


def test_fsdp_predicts_what_one_process_does():
    outputs = []
    for strategy in ("single", "fsdp"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
        outputs.append(torch.cat(fit(model, strategy).predict(model, X)))
    torch.testing.assert_close(outputs[1], outputs[0])
