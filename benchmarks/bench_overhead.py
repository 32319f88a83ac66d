"""What emulation costs: ratios of emulated to plain CPU time, interleaved, medians.

    python -m benchmarks.bench_overhead [--rounds N] [--record]

Five programs: `add_` on a small tensor, a number fetched from it, a training step of an MLP (batch 128), one of the
documents' small network (13-16-32-1), and one of a ResNet-18-like network (batch 8, 64x64). The last runs again with
Adam's foreach form in the plain program too: CUDA's default, which is not the CPU's, and slower there, since it keeps
the temporaries of all parameters at once.
Each round times the plain form, the same under a dispatch mode that does nothing, and the emulated one directly after
each other, in one process, with all that `windtunnel run` does by default. What an empty mode costs moves with the
machine, and is the least that any emulation in Python costs there: the last column is the ratio to it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from operator import truediv

import torch
from tools.docs import figures
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import windtunnel

stock_clock = time.process_time  # the kernel's: other work on the machine does not count


def small_add(device: str) -> Callable[[], None]:
    """100 in-place additions to a tensor of 16 numbers."""
    x = torch.ones(16, device=device)

    def step() -> None:
        for _ in range(100):
            x.add_(1)

    return step


def training(
    model: nn.Module, shape: tuple[int, ...], classes: int, device: str, foreach: bool | None = None
) -> Callable[[], None]:
    """One training step: forward, cross entropy, backward, Adam with the device's defaults (`foreach` None)."""
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=foreach)
    x = torch.randn(*shape, device=device)
    y = torch.randint(0, classes, (shape[0],), device=device)
    loss_function = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_function(model(x), y).backward()
        optimizer.step()

    return step


def mlp(device: str) -> Callable[[], None]:
    """784-256-128-10, batch 128."""
    layers = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    return training(layers, (128, 784), 10, device)


def small_item(device: str) -> Callable[[], None]:
    """100 sums of 16 numbers, each fetched by the host."""
    x = torch.ones(16, device=device)

    def step() -> None:
        for _ in range(100):
            x.sum().item()

    return step


def small_mlp(device: str) -> Callable[[], None]:
    """13-16-32-1, batch 128: the documents' own network."""
    layers = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    x, y = torch.randn(128, 13, device=device), torch.randn(128, 1, device=device)
    loss_function = nn.MSELoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_function(layers(x), y).backward()
        optimizer.step()

    return step


class Block(nn.Module):
    """A basic residual block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_two = nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions and the shortcut."""
        out = torch.relu(self.norm(self.one(x)))
        return torch.relu(self.norm_two(self.two(out)) + self.short(x))


def resnet(device: str, foreach: bool | None = None) -> Callable[[], None]:
    """ResNet-18's shape: 64 to 512 channels in four stages of two blocks, batch 8, 64x64."""
    stages = [Block(a, b, s) for a, b, s in ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1),
                                             (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))]  # fmt: skip
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return training(model, (8, 3, 64, 64), 10, device, foreach)


def resnet_foreach(device: str) -> Callable[[], None]:
    """The same with Adam's foreach form, which is what CUDA takes by default, on every device."""
    return resnet(device, foreach=True)


def timed(step: Callable[[], None], times: int) -> float:
    """Seconds of processor time a step, the mean of `times`."""
    begin = stock_clock()
    for _ in range(times):
        step()
    return (stock_clock() - begin) / times


PROGRAMS: dict[str, tuple[Callable[[str], Callable[[], None]], int]] = {
    "add_ on a small tensor (100 x)": (small_add, 30),
    "sum().item() (100 x)": (small_item, 15),
    "documents' MLP step, batch 128": (small_mlp, 60),
    "MLP training step, batch 128": (mlp, 20),
    "ResNet-18-like step, batch 8": (resnet, 2),
    "  foreach in the plain one too": (resnet_foreach, 2),
}


FIGURES = dict(zip(PROGRAMS, ("add", "item", "documents", "mlp", "resnet", "resnet-foreach"), strict=True))
"""The programs' rows in docs/figures/overhead.json."""


class Empty(TorchDispatchMode):
    """A dispatch mode that hands every operator on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operator."""
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds a program (15)")
    parser.add_argument("--record", action="store_true", help="write docs/figures/overhead.json")
    options = parser.parse_args()
    rounds, rows = options.rounds, {}
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {rounds} interleaved rounds, medians")
    print(
        f"{'program':32} {'plain':>10} {'emulated':>10} {'ratio':>7} {'quartiles':>14} {'empty mode':>11} {'to it':>7}"
    )
    for name, (make, times) in PROGRAMS.items():
        plain, empty, emulated = [], [], []
        for _ in range(rounds):
            # Each makes its model anew and takes one step before the timed ones: none has warmer memory.
            step = make("cpu")
            step()
            plain.append(timed(step, times))
            with Empty():
                step = make("cpu")
                step()
                empty.append(timed(step, times))
            with windtunnel.emulate("V100"):
                step = make("cuda")
                step()
                emulated.append(timed(step, times))
        low, middle, high = statistics.quantiles(map(truediv, emulated, plain), n=4)
        print(
            f"{name:32} {statistics.median(plain) * 1e6:8.0f}us {statistics.median(emulated) * 1e6:8.0f}us"
            f" {middle:6.2f}x {low:6.2f}-{high:<6.2f} {statistics.median(map(truediv, empty, plain)):10.2f}x"
            f" {statistics.median(map(truediv, emulated, empty)):6.2f}x"
        )
        rows[FIGURES[name]] = {
            "ratio": round(middle, 2),
            "spread": [round(low, 2), round(high, 2)],
            "empty": round(statistics.median(map(truediv, empty, plain)), 2),
            "own": round(statistics.median(map(truediv, emulated, empty)), 2),
        }
    if options.record:
        figures.record("overhead", rows)


if __name__ == "__main__":
    main()
