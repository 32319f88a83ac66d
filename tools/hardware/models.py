"""The training steps that are profiled and timed: a small residual network and a few transformer blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

STEPS = 5
REPEATS = 5


def make(name: str, short: bool) -> Callable[[], None]:
    """One training step of a model on the current GPU, called again and again."""
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net, batch, target, loss_of = (_residual if name == "residual" else _transformer)(short)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    precision = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", precision, enabled=name.endswith("autocast")):
            loss = loss_of(net(batch), target)
        loss.backward()
        optimizer.step()

    return step


def times_ms(step: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of `STEPS` steps, the medians of several measurements: between events, and to launch on the host."""
    import torch

    device_ms, host_ms = [], []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        started = time.perf_counter()
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        host_ms.append(1e3 * (time.perf_counter() - started))
        torch.cuda.synchronize()
        device_ms.append(begin.elapsed_time(end))
    return median(device_ms), median(host_ms)


NAMES = ("residual", "transformer", "transformer autocast")


def _residual(short: bool) -> tuple[Any, Any, Any, Any]:
    """Nine convolutions in three stages, with batch norm; images of 112x112."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, 1, 1, bias=False),
                nn.BatchNorm2d(after),
            )
            self.way = nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.way(x))

    width, images, side = (8, 2, 32) if short else (64, 64, 112)
    net = nn.Sequential(
        Block(3, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 100),
    ).cuda()
    batch = torch.randn(images, 3, side, side, device="cuda")
    return net, batch, torch.zeros(images, dtype=torch.long, device="cuda"), nn.CrossEntropyLoss()


def _transformer(short: bool) -> tuple[Any, Any, Any, Any]:
    """Four pre-norm encoder blocks without dropout."""
    import torch
    from torch import nn

    width, blocks, batch, length = (32, 1, 2, 16) if short else (768, 4, 8, 512)
    layer = nn.TransformerEncoderLayer(
        width, max(2, width // 64), 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
    )
    net = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False).cuda()
    x = torch.randn(batch, length, width, device="cuda")
    return net, x, torch.zeros_like(x), nn.MSELoss()
