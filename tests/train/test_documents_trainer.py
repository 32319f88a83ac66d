"""The hooks of the documents' own Trainer: add_to_class, hyper-parameters, prepare_model, the board, scratch models."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch import nn
from training import ADAM, housing, network

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import Board, HyperParameters, Module, Trainer, add_to_class, set_scratch_params_device
from windtunnel.train.board import in_notebook


class Regression(Module):
    def __init__(self, width: int = 4, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.LazyLinear(width), nn.ReLU(), nn.LazyLinear(1))

    def forward(self, inputs):
        return self.net(inputs)

    def loss(self, outputs, target):
        return nn.functional.mse_loss(outputs, target)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


# mission 56
def test_add_to_class_makes_a_method():
    class Target:
        pass

    one = Target()

    @add_to_class(Target)
    def answer(self):
        return 42

    assert one.answer() == 42


# mission 57
def test_hyper_parameters_are_attributes():
    trainer = Trainer(10, num_gpus=0, gradient_clip_val=1)
    assert (trainer.max_epochs, trainer.num_gpus, trainer.gradient_clip_val) == (10, 0, 1)
    assert trainer.hparams["max_epochs"] == 10
    assert Regression(width=8).hparams == {"width": 8, "rate": 0.1}
    assert (Trainer(3).num_gpus, Trainer(3).gradient_clip_val) == (0, 0)


def test_hyper_parameters_may_be_left_out():
    class Keeps(HyperParameters):
        def __init__(self, a, b=2, **rest):
            self.save_hyperparameters(ignore=["a"])

    one = Keeps(1, c=3)
    assert one.hparams == {"b": 2, "c": 3}
    assert (one.b, one.c, hasattr(one, "a")) == (2, 3, False)


# mission 58
def test_gpus_are_at_most_those_that_are_there(session):
    assert Trainer(1, num_gpus=8).gpus == [wt.gpu(0), wt.gpu(1), wt.gpu(2)]
    assert Trainer(1, num_gpus=2).gpus == [wt.gpu(0), wt.gpu(1)]
    assert Trainer(1).gpus == []


# mission 59
def test_prepare_batch_moves_each_array(session):
    trainer = Trainer(1, num_gpus=1)
    batch = [torch.ones(2), torch.ones(3)]
    trainer.placement.setup(trainer.gpus)
    assert wt.device_of(trainer.prepare_batch(batch)) == wt.gpu(0)
    assert wt.device_of(batch) == wt.cpu()


# mission 60, 63
def test_prepare_model_gives_it_the_trainer_and_the_limits(session):
    trainer, model = Trainer(7, num_gpus=1, progress=False), Regression()
    trainer.fit(model, housing())
    assert model.trainer is trainer
    assert trainer.model is model
    assert model.board.xlim == [0, 7]
    assert wt.device_of(model) == wt.gpu(0)


# mission 51, 53, 54
def test_a_lazy_module_trains_on_the_gpu(session):
    model = Regression()
    history = Trainer(3, num_gpus=1, progress=False).fit(model, housing(), housing())
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert model.net[0].weight.data.device == wt.gpu(0)
    outputs = model(torch.ones(2, 13, device=wt.gpu(0)))
    assert outputs.shape == (2, 1)
    assert outputs.device == wt.gpu(0)
    assert type(outputs.grad_fn).__name__ == "AddmmBackward0"


class Scratch(Module):
    """Parameters that are plain tensors, and modules in a list: what nn.Module.to does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.zeros(13, 1, requires_grad=True)
        self.parts = [Part(), Part()]

    def forward(self, inputs):
        return self.parts[1](self.parts[0](inputs @ self.weight))

    def loss(self, outputs, target):
        return nn.functional.mse_loss(outputs, target)

    def scratch_parameters(self):
        return [self.weight, *(part.scale for part in self.parts)]

    def configure_optimizers(self):
        return torch.optim.SGD(self.scratch_parameters(), lr=0.05)


class Part(Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, inputs):
        return inputs * self.scale


# mission 61
def test_scratch_parameters_train_after_the_move(session):
    model = Scratch()
    tensors = model.scratch_parameters()
    history = Trainer(10, num_gpus=1, progress=False).fit(model, housing())
    assert all(now is before for now, before in zip(model.scratch_parameters(), tensors, strict=True))
    assert {tensor.device for tensor in tensors} == {wt.gpu(0)}
    assert all(tensor.is_leaf and tensor.grad is not None for tensor in tensors)
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_scratch_parameters_stay_where_they_are():
    model = Scratch()
    before = model.weight.data_ptr()
    set_scratch_params_device(model, wt.cpu())
    assert model.weight.data_ptr() == before


@pytest.mark.parametrize("missing", ["loss", "configure_optimizers"])
def test_what_a_module_lacks_is_said(missing):
    class Lacking(Regression):
        pass

    setattr(Lacking, missing, getattr(Module, missing))
    with pytest.raises(UsageError, match=f"Lacking has no {'loss' if missing == 'loss' else 'optimizer'}"):
        Trainer(1, progress=False).fit(Lacking(), housing())


# mission 63
def test_board_is_a_png_in_headless_runs(tmp_path):
    assert not in_notebook()
    trainer = Trainer(3, progress=False, board=tmp_path / "plots" / "board.png")
    trainer.fit(network(), housing(), housing(), loss=nn.MSELoss(), optimizer=ADAM)
    with Image.open(tmp_path / "plots" / "board.png") as image:
        assert image.size == (480, 300)
        colours = {image.getpixel((x, y))[:3] for x in range(70, 460) for y in range(20, 250)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours  # Matplotlib's first two


def test_board_takes_means_and_odd_values():
    board = Board(xlabel="step", ylim=(0, 1))
    for x in range(10):
        board.draw(x, x / 10, "loss", every_n=5)
    assert board.curves == {"loss": [(2.0, pytest.approx(0.2)), (7.0, pytest.approx(0.7))]}
    board.draw(1, float("nan"), "odd")
    board.draw(1, 3, "one point")
    assert Image.open(io.BytesIO(board.png())).format == "PNG"
    assert not board.show()


def test_board_draws_what_it_was_given():
    board = Board(ylabel="loss", xlim=(0, 3))
    for x, y in ((1, 0.5), (2, float("nan")), (3, 0.25)):
        board.draw(x, y, "train_loss")
    (axes,) = board.figure().axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[1, 0.5], [3, 0.25]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xlim()) == ("epoch", "loss", (0, 3))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train_loss"]


def test_board_leaves_pyplot_alone():
    program = "import sys; from windtunnel.train import Board; Board().png(); print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_board_without_matplotlib_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="Matplotlib, which is not installed: `pip install matplotlib`"):
        Trainer(1, board=True)
    Trainer(1)
    Board().draw(1, 2, "points are kept without it")


def test_empty_board_is_a_picture_too():
    assert Image.open(io.BytesIO(Board().png())).size == (480, 300)
