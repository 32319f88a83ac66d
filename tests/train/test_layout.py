"""Channels last: chosen where tensor cores gain by it, and the same numbers either way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.errors import UsageError
from windtunnel.train import Tensors, Trainer

IMAGES = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(32) % 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))


def trained(num_gpus: int = 1, **options) -> tuple[nn.Module, float]:
    model = network()
    trainer = Trainer(2, num_gpus, progress=False, **options)
    data = Tensors(IMAGES, LABELS, batch_size=16, shuffle=False)
    history = trainer.fit(model, data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return model, history[-1]["train_loss"]


def is_channels_last(model: nn.Module) -> bool:
    return model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("gpu", "precision", "expected"),
    [("A100", "bf16", True), ("A100", "tf32", True), ("A100", "fp32", False), ("P100", "fp16", False)],
)
def test_taken_where_tensor_cores_compute(gpu, precision, expected):
    with windtunnel.emulate(gpu):
        model, _ = trained(precision=precision)
        assert is_channels_last(model) is expected


def test_activations_follow_the_weights():
    formats = []
    model = network()
    model[2].register_forward_hook(
        lambda layer, inputs, output: formats.append(output.is_contiguous(memory_format=torch.channels_last))
    )
    trainer = Trainer(1, progress=False, channels_last=True)
    data = Tensors(IMAGES, LABELS, batch_size=32)
    trainer.fit(model, data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert formats == [True]


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_numbers_are_those_of_the_other_format(num_gpus):
    with windtunnel.emulate("A100"):
        model, loss = trained(num_gpus, channels_last=True)
        _, other = trained(num_gpus, channels_last=False)
        assert is_channels_last(model)
    assert loss == pytest.approx(other, rel=1e-5)


def test_a_checkpoint_goes_on_in_the_other_format(tmp_path):
    data = Tensors(IMAGES, LABELS, batch_size=16, shuffle=False)
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.Adam}
    whole = Trainer(2, progress=False).fit(network(), data, **options)
    Trainer(1, progress=False, channels_last=True, checkpoint=tmp_path).fit(network(), data, **options)
    resumed = Trainer(2, progress=False, checkpoint=tmp_path).fit(network(), data, **options, resume=True)
    assert resumed[-1]["train_loss"] == pytest.approx(whole[-1]["train_loss"], rel=1e-5)


def test_sharded_parameters_cannot_have_it():
    from windtunnel.train.layout import wants_channels_last
    from windtunnel.train.precision import Precision
    from windtunnel.train.strategies import choose

    with pytest.raises(UsageError, match="does not work with strategy 'fsdp'"):
        wants_channels_last(True, network(), choose("fsdp", 1), Precision("bf16"))
