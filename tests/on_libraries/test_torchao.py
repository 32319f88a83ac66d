"""torchao on emulated GPUs: weights in 8 and 4 bits, products in 8 bits, training in float8."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


TRAINING = """
import sys, torch
from torch import nn
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4TrainingConfig
from torchao.quantization import quantize_

torch.manual_seed(0)
layers = (nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 256, bias=False))
model = nn.Sequential(*layers).bfloat16().cuda()
x = torch.randn(128, 256).to("cuda", torch.bfloat16)
wanted = model(x).float().detach()
if sys.argv[1] == "nvfp4":
    recipe = NVFP4TrainingConfig()
else:
    recipe = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe(sys.argv[1]))
quantize_(model, recipe, filter_fn=lambda module, name: isinstance(module, nn.Linear))
step = torch.compile(model) if "compiled" in sys.argv else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("off by", ((step(x).float() - wanted).norm() / wanted.norm()).item())
for _ in range(3):
    loss = (step(x).float() ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
print("peak", torch.cuda.max_memory_allocated())
"""


def trained(tmp_path: Path, *arguments: str, no_data: bool = False) -> tuple[list[float], int]:
    """The losses and the peak of that training in a process of its own: torchao asks which GPU it has when imported."""
    (tmp_path / "train.py").write_text(TRAINING)
    flags = ["--no-data"] if no_data else []
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "B200", *flags, "train.py", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    words = [line.split() for line in ran.stdout.splitlines()]
    if not no_data:
        assert next(float(w[2]) for w in words if w[:1] == ["off"]) < (0.25 if "nvfp4" in arguments else 0.06)
    return [float(w[1]) for w in words if w[:1] == ["loss"]], next(int(w[1]) for w in words if w[:1] == ["peak"])


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_training_in_mxfp8(tmp_path: Path, how: str) -> None:
    losses, peak = trained(tmp_path, "mxfp8_rceil", how)
    assert losses == pytest.approx(trained(tmp_path, "mxfp8_emulated_rceil", how)[0], rel=1e-2)
    assert losses[0] > losses[1] > losses[2]
    assert trained(tmp_path, "mxfp8_rceil", how, no_data=True)[1] == peak


def test_training_in_nvfp4(tmp_path: Path) -> None:
    losses, peak = trained(tmp_path, "nvfp4")
    assert losses[0] > losses[1] > losses[2]
    # Without data both layers have the same signs, and so one matrix of 16 x 16 for both.
    assert trained(tmp_path, "nvfp4", no_data=True)[1] == peak - 16 * 16 * 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "error"), [("MXDynamicActivationMXWeight", 0.06), ("NVFP4WeightOnly", 0.16)])
def test_layers_of_blackwell(name: str, error: float, compiled: bool) -> None:
    from torchao.prototype import mx_formats
    from torchao.quantization import quantize_

    with windtunnel.emulate("B200"), torch.no_grad():
        plain = network()
        x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
        wanted = plain(x)
        quantized = copy.deepcopy(plain)
        quantize_(quantized, getattr(mx_formats, f"{name}Config")())
        found = torch.compile(quantized)(x) if compiled else quantized(x)
        assert off_by(found, wanted) < error
