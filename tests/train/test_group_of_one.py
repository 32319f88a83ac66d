"""Strategies of several processes in a group of one, which this process is."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from windtunnel.errors import UsageError
from windtunnel.train import Callback, Trainer

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


def trained(strategy: str, make, data=(X, Y), optimizer=SGD, callback=Callback, num_gpus=0) -> list[torch.Tensor]:
    """The parameters that a training leaves, whole."""
    torch.manual_seed(0)
    model = make()
    trainer = Trainer(3, num_gpus, progress=False, strategy=strategy, callbacks=[callback()], seed=0)
    optimizer = optimizer(model.parameters()) if optimizer is not SGD else SGD
    trainer.fit(model, data, data, loss=nn.MSELoss(), optimizer=optimizer, batch_size=4)
    held = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    assert {id(parameter) for parameter in held} == {id(parameter) for parameter in model.parameters()}
    return [trainer.placement.full(parameter).cpu() for parameter in held]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_sparse_gradients_are_averaged(strategy):
    def embedding() -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 2, sparse=True), nn.Flatten(), nn.Linear(2, 1))

    data = torch.arange(12).view(12, 1), Y
    torch.testing.assert_close(trained(strategy, embedding, data), trained("single", embedding, data))


class Freezes(Callback):
    """Freezes the first layer after an epoch, and lets it train again after another one."""

    def on_epoch_end(self, trainer, metrics):
        trainer.model[0].requires_grad_(len(trainer.history) != 1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_callback_may_freeze_and_unfreeze(strategy):
    expected = trained("single", linear, callback=Freezes)
    torch.testing.assert_close(trained(strategy, linear, callback=Freezes), expected)


class Adds(Callback):
    """Gives the optimizer the layer that was left out of it, as the model holds it after a validation."""

    def on_epoch_end(self, trainer, metrics):
        if len(trainer.history) == 1:
            trainer.optimizer.add_param_group({"params": list(trainer.model[1].parameters())})


def test_a_group_added_under_fsdp_is_of_what_trains():
    def half(parameters):
        return torch.optim.SGD(list(parameters)[:2], lr=0.05)

    expected = trained("single", linear, optimizer=half, callback=Adds)
    torch.testing.assert_close(trained("fsdp", linear, optimizer=half, callback=Adds), expected)


def test_an_optimizer_made_before_fsdp_trains_the_shards():
    def adam(parameters):
        first, *rest = parameters
        return torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.01)

    torch.testing.assert_close(trained("fsdp", linear, optimizer=adam), trained("single", linear, optimizer=adam))


def test_fused_optimizers_that_take_no_shards_are_refused():
    torch.testing.assert_close(
        trained("fsdp", linear, optimizer=lambda parameters: torch.optim.Adam(parameters, fused=True)),
        trained("single", linear, optimizer=torch.optim.Adam),
    )
    with pytest.raises(UsageError, match="the fused SGD of PyTorch does not take these parameters in shards: leave"):
        trained("fsdp", linear, optimizer=lambda parameters: torch.optim.SGD(parameters, fused=True))


def test_trainers_talk_over_the_group_that_there_is(monkeypatch):
    monkeypatch.setattr(dist, "new_group", lambda *args, **options: pytest.fail("a group of its own"))
    fit(linear(), "ddp")


def test_fsdp_predicts_what_one_process_does():
    outputs = []
    for strategy in ("single", "fsdp"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
        outputs.append(torch.cat(fit(model, strategy).predict(model, X)))
    torch.testing.assert_close(outputs[1], outputs[0])
