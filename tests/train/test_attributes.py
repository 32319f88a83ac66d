"""What a training changes in modules besides parameters and buffers is part of a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from training import ADAM, housing, network, weights

from windtunnel.train import Callback, Checkpoints, Trainer


class Crash(Callback):
    """Ends the process's part at a step; the training before and the one after it go on."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step == self.at:
            raise RuntimeError("crash")


class Schedule(Callback):
    """Changes the model when it begins, and at step 6 alone."""

    def on_fit_start(self, trainer: Trainer) -> None:
        self.begin(trainer.model)

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step == 6:
            self.change(trainer.model)

    def begin(self, model: nn.Module) -> None: ...

    def change(self, model: nn.Module) -> None: ...


class Unfreezes(Schedule):
    def begin(self, model: nn.Module) -> None:
        model[0].requires_grad_(False)

    def change(self, model: nn.Module) -> None:
        model[0].requires_grad_(True)


class StopsStatistics(Schedule):
    def change(self, model: nn.Module) -> None:
        model[1].eval()


class RaisesDropout(Schedule):
    def change(self, model: nn.Module) -> None:
        model[2].p = 0.5


class Averaged(nn.Module):
    """Scales by a count of its calls and a moving mean, neither of which is in its `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.mean: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            now = inputs.detach().mean()
            self.calls += 1
            self.mean = now if self.mean is None else self.mean.lerp(now, 1 / self.calls)
        return inputs - self.mean / self.calls


class CountingLoss(nn.MSELoss):
    calls = 0

    def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return super().forward(outputs, target) / (1 + self.calls)


def model() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(13, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), Averaged(), nn.Linear(8, 1))


def train(folder: Path, schedule: Callback, crash: int | None = None, resume: bool = False, gpus: int = 0) -> Trainer:
    checkpoint = Checkpoints(folder, every_steps=3)
    callbacks = [schedule, Crash(crash)]
    trainer = Trainer(4, gpus, progress=False, seed=5, checkpoint=checkpoint, callbacks=callbacks)
    arguments = {"loss": CountingLoss(), "optimizer": ADAM, "batch_size": 16, "resume": resume}
    if crash:
        with pytest.raises(RuntimeError, match="crash"):
            trainer.fit(model(), housing(), housing(), **arguments)
    else:
        trainer.fit(model(), housing(), housing(), **arguments)
    return trainer


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("schedule", [Unfreezes, StopsStatistics, RaisesDropout])
def test_what_training_changes_in_modules_is_resumed_bit_equal(session, schedule, gpus, tmp_path):
    expected = train(tmp_path / "whole", schedule(), gpus=gpus)
    train(tmp_path / "parts", schedule(), crash=8, gpus=gpus)
    train(tmp_path / "parts", schedule(), crash=17, resume=True, gpus=gpus)
    resumed = train(tmp_path / "parts", schedule(), resume=True, gpus=gpus)
    assert torch.equal(weights(resumed.model), weights(expected.model))
    assert resumed.history == expected.history


class Signals(nn.Module):
    """Counts its calls in evaluation, and asks the training to end in one of them."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.part, self.evaluations, self.at = network(), 0, at

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.evaluations += not self.training
        if self.evaluations == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.part(inputs) / (1 + self.evaluations)


def test_a_validation_that_is_left_has_changed_nothing(tmp_path):
    def train(folder: Path, at: int | None, resume: bool = False) -> list[dict[str, float]]:
        trainer = Trainer(3, progress=False, seed=5, checkpoint=folder)
        arguments = {"loss": nn.MSELoss(), "optimizer": ADAM, "batch_size": 16, "resume": resume}
        return trainer.fit(Signals(at), housing(), housing(), **arguments)

    expected = train(tmp_path / "whole", None)
    with pytest.raises(SystemExit):
        train(tmp_path / "parts", 10)
    assert train(tmp_path / "parts", None, resume=True) == expected


def test_what_training_has_not_changed_is_the_resumed_program_s(tmp_path):
    class Lowers(Schedule):
        def begin(self, model: nn.Module) -> None:
            model[2].p = 0.0

    train(tmp_path, Schedule(), crash=8)
    assert train(tmp_path, Lowers(), resume=True).model[2].p == 0.0
