"""torchao on emulated GPUs: weights in 8 and 4 bits, products in 8 bits, training in float8."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.session import Session

PLAIN = {"Int8WeightOnly": 0.02, "Int8DynamicActivationInt8Weight": 0.03, "Float8WeightOnly": 0.05}
PRODUCTS = {
    "Int8DynamicActivationInt8Weight": "aten::_int_mm",
    "Float8DynamicActivationFloat8Weight": "aten::_scaled_mm",
    "Int4WeightOnly": "aten::_weight_int4pack_mm",
}


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("H100") as session:
        yield session


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).bfloat16().cuda()


def off_by(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).float().norm() / wanted.float().norm()).item()


@pytest.mark.parametrize(
    ("name", "error"), [*PLAIN.items(), ("Float8DynamicActivationFloat8Weight", 0.08), ("Int4WeightOnly", 0.15)]
)
def test_quantized_layers(session: Session, name: str, error: float) -> None:
    from torchao import quantization

    plain = network()
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    wanted = plain(x)
    options = {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"} if "Int4" in name else {}
    quantized = copy.deepcopy(plain)
    quantization.quantize_(quantized, getattr(quantization, f"{name}Config")(**options))
    since = len(session.trace)
    assert off_by(quantized(x), wanted) < error
    names = {row.signature.name for row in session.trace.since(since)}
    if name in PRODUCTS:
        assert PRODUCTS[name] in names


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_training_in_float8(session: Session, recipe: str) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    plain = network()
    converted = convert_to_float8_training(copy.deepcopy(plain), config=Float8LinearConfig.from_recipe_name(recipe))
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    gradients = []
    for model in (plain, converted):
        given = x.clone().requires_grad_()
        since = len(session.trace)
        out = model(given)
        out.float().square().mean().backward()
        gradients.append((out, given.grad, model[0].weight.grad))
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("aten::_scaled_mm") >= 4
    for found, wanted in zip(gradients[1], gradients[0], strict=True):
        assert off_by(found, wanted) < 0.15


def test_an_a100_refuses_float8_as_it_does() -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    with windtunnel.emulate("A100"):
        model = convert_to_float8_training(network(), config=Float8LinearConfig.from_recipe_name("tensorwise"))
        with pytest.raises(RuntimeError, match="only supported on CUDA devices with compute capability"):
            model(torch.randn(16, 256, device="cuda", dtype=torch.bfloat16))


def test_without_data_memory_is_the_same() -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("H100", no_data=no_data):
            model = convert_to_float8_training(network(), config=Float8LinearConfig.from_recipe_name("rowwise"))
            model(torch.ones(64, 256, device="cuda", dtype=torch.bfloat16)).float().sum().backward()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]
