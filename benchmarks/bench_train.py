"""Time of a training step: a bare PyTorch loop, the Trainer, and the other libraries that are installed.

Every contender trains the same model on the same data, in one process and one thread, in turns (interleaved), so that
a change of the machine's speed hits all. Printed: the median over the rounds of each round's ratio to the bare loop.

With --emulated the same is asked of an emulated V100, in modelled time: a loop with `loss.item()` in every step and
pageable copies against the Trainer.

    python -m benchmarks.bench_train [--rounds 9] [--clock cpu] [--json FILE] [--record] [--startup] [--emulated]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")
if "--emulated" not in sys.argv:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
from rich.console import Console
from tools.docs import figures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.train import Tensors, Trainer
from windtunnel.train import progress as progress_module

Run = Callable[[int], None]  # trains for so many epochs


class Case:
    """A model, its data and its loss."""

    def __init__(
        self, name: str, inputs: torch.Tensor, target: torch.Tensor, batch_size: int, epochs: int, pairs: bool = False
    ) -> None:
        self.name, self.inputs, self.target = name, inputs, target
        self.batch_size, self.epochs = batch_size, epochs
        self.loss: nn.Module = nn.MSELoss() if target.is_floating_point() else nn.CrossEntropyLoss()
        self.steps = -(-len(inputs) // batch_size)
        self.pairs = pairs

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        if self.inputs.dim() == 2:
            return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 7 * 7, 10),
        )  # fmt: skip

    def loader(self) -> DataLoader:
        data = (
            list(zip(self.inputs, self.target, strict=True)) if self.pairs else TensorDataset(self.inputs, self.target)
        )
        return DataLoader(data, self.batch_size, shuffle=True)


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    housing, price = torch.randn(404, 13, generator=generator), torch.randn(404, 1, generator=generator)
    images = torch.randn(512, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (512,), generator=generator)
    return [
        Case("MLP 404x13, batch 128, a list of pairs as in the document", housing, price, 128, 100, pairs=True),
        Case("MLP 404x13, batch 128, a TensorDataset", housing, price, 128, 100),
        Case("convolutional net 28x28, batch 64, a TensorDataset", images, labels, 64, 3),
    ]


def bare(case: Case) -> Run:
    model, loader = case.model(), case.loader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            model.train()
            for inputs, target in loader:
                optimizer.zero_grad()
                loss = case.loss(model(inputs), target)
                loss.backward()
                optimizer.step()

    return run


def slices(case: Case) -> Run:
    model = case.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            order = torch.randperm(len(case.inputs))
            for rows in order.split(case.batch_size):
                optimizer.zero_grad()
                loss = case.loss(model(case.inputs[rows]), case.target[rows])
                loss.backward()
                optimizer.step()

    return run


def trainer(case: Case, tensors: bool = False, fused: bool = False) -> Run:
    model = case.model()
    maker = functools.partial(torch.optim.Adam, lr=0.01)
    optimizer = maker if fused else maker(model.parameters())
    data = Tensors(case.inputs, case.target, batch_size=case.batch_size) if tensors else case.loader()

    def run(epochs: int) -> None:
        Trainer(epochs).fit(model, data, loss=case.loss, optimizer=optimizer)

    return run


def lightning(case: Case, quiet: bool = True) -> Run:
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = case.model()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            inputs, target = batch
            loss = case.loss(self.net(inputs), target)
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    model, loader = Model(), case.loader()
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

    def run(epochs: int) -> None:
        options = off if quiet else {"default_root_dir": tempfile.gettempdir()}
        pl.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **options).fit(model, loader)

    return run


def accelerate(case: Case) -> Run:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = case.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, case.loader())

    def run(epochs: int) -> None:
        for _ in range(epochs):
            model.train()
            for inputs, target in loader:
                optimizer.zero_grad()
                loss = case.loss(model(inputs), target)
                accelerator.backward(loss)
                optimizer.step()

    return run


def keras(case: Case) -> Run:
    import keras as k

    if case.inputs.dim() == 2:
        layers = [k.layers.Dense(16, "relu"), k.layers.Dense(32, "relu"), k.layers.Dense(1)]
        inputs = case.inputs.numpy()
    else:
        layers = [
            k.layers.Conv2D(8, 3, padding="same", activation="relu"), k.layers.MaxPool2D(2),
            k.layers.Conv2D(16, 3, padding="same", activation="relu"), k.layers.MaxPool2D(2),
            k.layers.Flatten(), k.layers.Dense(10),
        ]  # fmt: skip
        inputs = case.inputs.permute(0, 2, 3, 1).numpy()
    model = k.Sequential(layers)
    target = case.target.numpy()
    loss = "mse" if case.target.is_floating_point() else k.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=k.optimizers.Adam(0.01), loss=loss)

    def run(epochs: int) -> None:
        model.fit(inputs, target, batch_size=case.batch_size, epochs=epochs, verbose=0)

    return run


CONTENDERS: dict[str, tuple[str | None, Callable[[Case], Run]]] = {
    "bare loop, DataLoader": (None, bare),
    "bare loop, slices": (None, slices),
    "Trainer, DataLoader": (None, trainer),
    "Trainer, tensors": (None, functools.partial(trainer, tensors=True)),
    "Trainer, tensors, fused": (None, functools.partial(trainer, tensors=True, fused=True)),
    "accelerate": ("accelerate", accelerate),
    "Lightning, quiet": ("lightning", lightning),
    "Lightning, defaults": ("lightning", functools.partial(lightning, quiet=False)),
    "Keras (torch backend)": ("keras", keras),
}
ROWS = "bare", "slices", "loader", "tensors", "fused", "accelerate", "lightning-off", "lightning", "keras"
FIGURES = dict(zip(CONTENDERS, ROWS, strict=True))
"""The contenders' rows in docs/figures/trainer.json."""


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds a step of each contender, one entry a round."""
    runs = {name: make(case) for name, (package, make) in CONTENDERS.items() if installed(package)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(1)
    for number in range(rounds):
        order = list(runs) if number % 2 == 0 else list(runs)[::-1]
        for name in order:
            begin = clock()
            runs[name](case.epochs)
            times[name].append((clock() - begin) / (case.epochs * case.steps))
    return times


def installed(package: str | None) -> bool:
    return package is None or importlib.util.find_spec(package) is not None


def show_progress_on_a_terminal() -> None:
    """Let the Trainer draw its bar, on a terminal that nobody sees, so that its cost is counted."""
    console = functools.partial(Console, file=io.StringIO(), force_terminal=True, width=100)
    original = progress_module.Progress

    class Shown(original):  # type: ignore[misc,valid-type]
        def __init__(self, enabled: bool, max_epochs: int, steps: int | None) -> None:
            super().__init__(enabled, max_epochs, steps, console() if enabled else None)

    import windtunnel.train.trainer as trainer_module

    trainer_module.Progress = Shown


def emulated(gpus: str = "1xV100", epochs: int = 12) -> None:
    """Print modelled microseconds a step on one emulated GPU, and what the findings are."""
    import windtunnel
    from windtunnel import torch as wt

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(1024, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (1024,), generator=generator)
    case = Case("convolutional net 28x28, batch 64", images, labels, 64, epochs)
    batches = list(zip(images.split(64), labels.split(64), strict=True))

    def naive() -> None:
        model = case.model().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(epochs):
            for inputs, target in batches:
                loss = case.loss(model(inputs.cuda()), target.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss.item()

    def trained(data: object, graph: bool) -> None:
        maker = functools.partial(torch.optim.Adam, lr=0.01)
        with_gpu = Trainer(epochs, num_gpus=1, progress=False, graph=graph)
        with_gpu.fit(case.model(), data, loss=case.loss, optimizer=maker, batch_size=64)

    runs: dict[str, Callable[[], None]] = {
        "naive loop": naive,
        "Trainer, batches": functools.partial(trained, batches, False),
        "Trainer, tensors": functools.partial(trained, (images, labels), False),
        "Trainer, tensors, graph": functools.partial(trained, (images, labels), True),
    }
    base = 0.0
    print(f"{case.name}, {epochs} epochs, EMULATED {gpus}: modelled")
    for name, run in runs.items():
        with windtunnel.emulate(gpus, host="reference") as session:
            wt.synchronize(wt.gpu(0))  # begins CUDA, which takes its time once
            begin = time.perf_counter()
            run()
            wt.synchronize()
            seconds = (time.perf_counter() - begin) / (epochs * case.steps)
            findings = sorted({finding.code for finding in session.findings()})
        base = base or seconds
        print(f"{name:24} {seconds * 1e6:6.0f} us a step, ratio {seconds / base:.2f}, findings: {', '.join(findings)}")


def startup(repeats: int = 5) -> dict[str, float]:
    """Seconds of a fresh Python: importing torch, and that plus the Trainer with a first step."""
    first_step = (
        "import torch; from windtunnel.train import Trainer; "
        "m = torch.nn.Linear(2, 1); x = torch.ones(4, 2); "
        "Trainer(1, progress=False).fit(m, (x, x[:, :1]), loss=torch.nn.MSELoss(), optimizer=torch.optim.SGD)"
    )
    bare_step = (
        "import torch; from torch.utils.data import DataLoader; m = torch.nn.Linear(2, 1); x = torch.ones(4, 2); "
        "o = torch.optim.SGD(m.parameters(), lr=0.001); l = torch.nn.MSELoss()(m(x), x[:, :1]); l.backward(); o.step()"
    )
    programs = {"import torch": "import torch", "bare first step": bare_step, "Trainer first step": first_step}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: time of this process alone")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--record", action="store_true", help="write docs/figures/trainer.json")
    parser.add_argument("--emulated", action="store_true", help="only the modelled comparison on an emulated V100")
    parser.add_argument("--startup", action="store_true", help="also time the start of a fresh process")
    arguments = parser.parse_args()
    if arguments.emulated:
        emulated()
        return
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    show_progress_on_a_terminal()
    missing = sorted({package for package, _ in CONTENDERS.values() if not installed(package) and package})
    print(f"torch {torch.__version__}, CPU, 1 thread, measured ({arguments.clock} clock)")
    print(f"not installed: {', '.join(missing) or 'none'}")
    results: dict[str, object] = {"torch": torch.__version__, "missing": missing}
    rows: dict[str, dict[str, str]] = {}
    for column, case in zip(("mlp", "dataset", "conv"), cases(), strict=True):
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            times = measure(case, arguments.rounds, clock)
        base = times["bare loop, DataLoader"]
        print(f"\n{case.name} ({arguments.rounds} rounds of {case.epochs} epochs)")
        print(f"{'':24} {'us a step':>10} {'ratio':>7} {'quartiles':>15}")
        results[case.name] = {}
        for name, values in times.items():
            ratios = [value / reference for value, reference in zip(values, base, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            spread = f"{low:.2f} .. {high:.2f}"
            print(f"{name:24} {statistics.median(values) * 1e6:10.0f} {middle:7.2f} {spread:>15}")
            rows.setdefault(FIGURES[name], {})[column] = f"{statistics.median(values) * 1e6:.0f} ({middle:.2f})"
            results[case.name][name] = {"us": statistics.median(values) * 1e6, "ratio": middle}  # type: ignore[index]
    if arguments.startup:
        seconds = startup()
        beyond = {name: seconds[name] - seconds["import torch"] for name in ("Trainer first step", "bare first step")}
        print("\n" + ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items()))
        print("beyond import torch: " + ", ".join(f"{name} {value:.2f} s" for name, value in beyond.items()))
        print("(the bare first step is PyTorch's own: making an optimizer imports torch._dynamo)")
        results["startup"] = seconds
    if arguments.record:
        figures.record("trainer", rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
