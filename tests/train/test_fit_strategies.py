"""Several devices and several processes compute what one device does, for odd numbers and uneven batches too."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import ADAM, SHARDED, housing, launch_trainings, network, weights

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import Module, Tensors, Trainer
from windtunnel.train.data import shares
from windtunnel.train.strategies import STRATEGIES, DataParallel, Distributed, Sharded, SingleDevice, choose


def single(batch_size: int = 48, **options) -> Trainer:
    """The same training in one process, on the CPU."""
    inputs, target = housing()
    trainer = Trainer(3, progress=False, gradient_clip_val=1.0, **options)
    data = Tensors(inputs, target, batch_size=batch_size, shuffle=False)
    trainer.fit(network(), data, (inputs, target), loss=nn.MSELoss(), optimizer=ADAM, batch_size=7)
    return trainer


def agree(result: dict, trainer: Trainer) -> None:
    torch.testing.assert_close(torch.tensor(result["weights"]), weights(trainer.model), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(trainer.history, result["history"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-4)


# mission 110, 117, 123, 125
@pytest.mark.long
def test_two_processes_agree_with_one(tmp_path):
    trainings = ("ddp", "tensors", {"torchmetrics": True}), ("ddp", "loader", {"batch_size": 16, "accumulate": 3})
    whole, accumulated = launch_trainings(2, tmp_path, *trainings)
    _, target = housing()
    errors = [row.pop("val_error") for row in whole["history"] if row.pop("train_error")]
    outputs = torch.tensor(whole["outputs"]).reshape(target.shape)
    assert errors[-1] == pytest.approx((outputs - target).abs().mean().item(), rel=1e-4)
    assert whole["world_size"] == 2
    assert len(whole["outputs"]) == 101
    for result in (whole, accumulated):
        agree(result, single())


# mission 125
@pytest.mark.weekly
def test_three_processes_agree_with_one(tmp_path):
    """Of 101 rows in batches of 99, three of 33, the last two go to one process: two have none and take the step."""
    options: list[dict] = [{}, {}, {"batch_size": 99}]
    trainings = [("ddp", data, option) for data, option in zip(("loader", "stream", "stream"), options, strict=True)]
    trainings += [] if SHARDED else [("fsdp", "loader", {})]
    for result, training in zip(launch_trainings(3, tmp_path, *trainings), trainings, strict=True):
        assert result["world_size"] == 3
        agree(result, single(training[2].get("batch_size", 48)))


@pytest.mark.weekly
def test_five_processes_agree_with_one(tmp_path):
    """The last batch has 101 - 2 x 45 = 11 rows."""
    (result,) = launch_trainings(5, tmp_path, ("ddp", "pairs", {"batch_size": 45}))
    agree(result, single(45))
    assert len(result["outputs"]) == 101


def test_fsdp_on_the_cpu_says_when_pytorch_has_it_not(monkeypatch):
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)
    with pytest.raises(UsageError, match=r"^fully_shard of PyTorch 2\..* runs only on GPUs"):
        Sharded.place(SimpleNamespace(device=torch.device("cpu")), nn.Linear(1, 1))


# mission 123, 124
@pytest.mark.long
def test_three_processes_on_emulated_gpus_agree_with_one(tmp_path):
    trainings = [(strategy, "loader", {"num_gpus": 8}) for strategy in ("ddp", "fsdp")]
    for result in launch_trainings(3, tmp_path, *trainings, gpus=True):
        assert result["devices"] == ["cuda:0"]
        agree(result, single())


# mission 50, 55, 58, 109
@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1, 1), (2, 2), (8, 3)])
def test_emulated_gpus_agree_with_the_cpu(session, asked, used):
    inputs, target = housing()
    model = network()
    trainer = Trainer(3, num_gpus=asked, progress=False, gradient_clip_val=1.0)
    data = Tensors(inputs, target, batch_size=48, shuffle=False)
    history = trainer.fit(model, data, (inputs, target), loss=nn.MSELoss(), optimizer=ADAM, batch_size=7)
    assert trainer.gpus == [wt.gpu(i) for i in range(used)]
    assert trainer.placement.name == ("dp" if used > 1 else "single")
    assert wt.device_of(model) == (wt.gpu(0) if used else wt.cpu())
    expected = single()
    assert history[-1] == pytest.approx(expected.history[-1], rel=1e-4)
    torch.testing.assert_close(weights(model), weights(expected.model), rtol=1e-4, atol=1e-5)


def test_without_gpus_the_cpu_is_used():  # mission 58
    trainer = Trainer(1, num_gpus=8)
    assert (trainer.gpus, trainer.device, trainer.placement.name) == ([], wt.cpu(), "single")


# mission 117
def test_data_parallel_splits_as_the_document_says(session):
    sizes = []

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(13, 1)

        def forward(self, inputs):
            sizes.append(len(inputs))
            return self.layer(inputs)

    Trainer(1, num_gpus=3, progress=False).fit(Watch(), housing(148), loss=nn.MSELoss(), optimizer=ADAM, batch_size=128)
    assert sorted(sizes[:3]) == [42, 43, 43]
    assert sorted(sizes[3:]) == [6, 7, 7]


@dataclasses.dataclass
class Prepared:
    """A batch that has been prepared once."""

    inputs: torch.Tensor
    target: torch.Tensor
    names: tuple[str, ...]
    share: torch.Tensor

    def __post_init__(self) -> None:
        self.inputs = self.inputs * 2


def test_data_parallel_divides_dataclasses_and_names_with_their_rows(session):
    seen = []

    class Own(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch):
            seen.append(
                (batch.inputs.flatten().tolist(), list(batch.names), batch.share.item(), str(batch.share.device))
            )
            return ((self.layer(batch.inputs) - batch.target) ** 2).mean() * batch.share

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.arange(3.0).view(3, 1)
    batch = Prepared(rows, rows, ("a", "b", "c"), torch.tensor(0.5))
    Trainer(1, 2, strategy="dp", progress=False).fit(Own(), [batch])
    assert sorted(seen) == [([0.0, 2.0], ["a", "b"], 0.5, "cuda:0"), ([4.0], ["c"], 0.5, "cuda:1")]
    assert batch.inputs.tolist() == [[0.0], [2.0], [4.0]]


# mission 117
def test_data_parallel_weighs_uneven_parts_of_a_module(session):
    class Own(Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.layer = nn.Linear(13, 1)

        def training_step(self, batch):
            inputs, target = batch
            error = self.layer(inputs) - target
            return {"loss": (error**2).mean(), "mae": error.abs().mean()}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = Tensors(*housing(), batch_size=50, shuffle=False)
    results = []
    for gpus in (0, 3):
        model = Own()
        history = Trainer(2, num_gpus=gpus, progress=False).fit(model, data)
        results.append((weights(model), history[-1]))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)


# mission 20, 49
def test_an_epoch_on_a_gpu_waits_once_for_its_losses(session):
    inputs, target = housing(404)
    trainer = Trainer(4, num_gpus=1, progress=False, graph=False)
    loader = DataLoader(TensorDataset(inputs, target), 16)
    trainer.fit(network(), loader, loss=nn.MSELoss(), optimizer=ADAM)
    waits = sum(finding.times for finding in session.findings() if finding.code == "host-sync")
    assert trainer.step == 4 * 26
    assert waits <= 4


def test_training_on_a_gpu_is_without_races_and_blocking_copies(session):
    inputs, target = housing(404)
    loader = DataLoader(list(zip(inputs, target, strict=True)), 64, shuffle=True)
    Trainer(3, num_gpus=1, progress=False).fit(network(), loader, (inputs, target), loss=nn.MSELoss(), optimizer=ADAM)
    codes = {finding.code for finding in session.findings()}
    assert codes <= {"launch-bound", "host-sync"}, codes


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 20, 101, 404])
def test_shares_cover_each_row_once(world, rows):
    """Sizes of one batch differ by at most one, and every process has as many steps."""
    plans = []
    for rank in range(world):
        strategy = SingleDevice()
        strategy.rank, strategy.world_size = rank, world
        plans.append(shares(rows, 4, strategy))
    assert len({len(plan) for plan in plans}) == 1
    covered = []
    for step in zip(*plans, strict=True):
        sizes = [share.size for share in step]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == step[0].total
        assert all(share.rows >= 1 and share.start + share.rows <= rows for share in step)
        covered += [row for share in step for row in range(share.start, share.start + share.size)]
    assert sorted(covered) == list(range(rows))


# mission 102, 110
def test_choice_of_a_strategy(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert list(STRATEGIES) == ["single", "dp", "ddp", "fsdp"]
    assert type(choose("auto", 0)) is SingleDevice
    assert type(choose("auto", 1)) is SingleDevice
    assert type(choose("auto", 2)) is DataParallel
    assert type(choose("fsdp", 2)) is Sharded
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert type(choose("auto", 2)) is Distributed
    with pytest.raises(UsageError, match="choose 'auto', 'single', 'dp', 'ddp', 'fsdp'"):
        choose("pipeline", 2)
