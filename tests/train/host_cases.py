"""Models, losses and callbacks that depend on the host: each trained by a loop written by hand, and by the Trainer.

As a program (`host_cases.py RESULT`, one of several processes) it runs all of them and writes those that differ.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from windtunnel import torch as wt
from windtunnel.train import Callback, Tensors, Trainer, seed_all
from windtunnel.train.strategies import Distributed

EPOCHS, BATCH = 5, 8
ROWS = 16 if "RANK" in os.environ else 64  # among several processes nothing is captured: few steps will do
mse = nn.functional.mse_loss


def data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(3))
    return inputs, inputs.sum(1, keepdim=True)


class Net(nn.Module):
    """Two layers, with a place between them for what a case does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Identity(), nn.Linear(6, 1)

    def between(self, hidden):
        return self.middle(hidden)

    def forward(self, inputs):
        return self.last(self.between(torch.tanh(self.first(inputs))))


class LayerDrop(Net):
    def between(self, hidden):
        return hidden if random.random() < 0.5 else torch.relu(hidden)


class NumPyNoise(Net):
    def between(self, hidden):
        return hidden * float(np.random.uniform(0.5, 1.5))


class OwnGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def between(self, hidden):
        return hidden * float(self.rng.uniform(0.5, 1.5))


class HostNoise(Net):
    def between(self, hidden):
        return hidden + torch.rand(()).item()


class Counter(Net):
    calls = 0

    def between(self, hidden):
        self.calls += 1
        return hidden * (1 + self.calls % 3)


SEEN: list[int] = []


class GlobalCounter(Net):
    def between(self, hidden):
        SEEN.append(1)
        return hidden / len(SEEN)


class Branch(Net):
    def between(self, hidden):
        return hidden if hidden.sum() > 0 else 2 * hidden


class Prints(Net):
    def between(self, hidden):
        print("forward", tuple(hidden.shape))
        return hidden


class Memory(Net):
    """Adds what it has computed in the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Any = 0.0

    def between(self, hidden):
        out = hidden + self.before
        self.before = hidden.detach().mean() * 0.5
        return out


class Schedule:
    """Yields another factor each time."""

    def __init__(self) -> None:
        self.factors = iter(range(1, 10_000))


class Iterated(Net):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def between(self, hidden):
        return hidden / next(self.schedule.factors)


class Scaled(Net):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.options = types.SimpleNamespace(factor=1.0, table={"a": [1.0]})
        self.on_host = torch.tensor(1.0)

    def between(self, hidden):
        factor = self.options.factor * self.options.table["a"][0] * type(self).scale
        return hidden * factor * self.on_host


class Dropping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Dropout(0.5)


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.BatchNorm1d(6)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Case:
    """`epoch(holder, number)` and `step(holder, number)` are called after each; a holder has model and optimizer."""

    def __init__(
        self,
        model: Callable[[], nn.Module] = Net,
        epoch: Callable[[Any, int], None] | None = None,
        step: Callable[[Any, int], None] | None = None,
        loss: Callable[[], Any] = lambda: mse,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    ) -> None:
        self.model, self.epoch, self.step, self.loss = model, epoch, step, loss
        self.optimizer = optimizer or (
            lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.05, momentum=0.5)
        )


def hyper(**values: float) -> Callable[[Any, int], None]:
    """Sets hyperparameters after the third epoch."""

    def set_(holder: Any, epoch: int) -> None:
        if epoch == 2:
            for group in holder.optimizer.param_groups:
                group.update(values)

    return set_


def after_third(change: Callable[[Any], Any]) -> Callable[[Any, int], None]:
    return lambda holder, epoch: change(holder) if epoch == 2 else None


def replace_weight(holder: Any) -> None:
    holder.model.first.weight.data = holder.model.first.weight.data * 0.5


def unfreeze(holder: Any) -> None:
    holder.model.first.requires_grad_(True)
    holder.optimizer.add_param_group({"params": list(holder.model.first.parameters()), "lr": 0.02})


def exchange(holder: Any) -> None:
    holder.optimizer = torch.optim.SGD(holder.model.parameters(), 0.01)


ALPHA = [1.0]


def weighted() -> Callable[[Any, Any], torch.Tensor]:
    ALPHA[0] = 1.0
    return lambda outputs, target: ALPHA[0] * mse(outputs, target)


def set_class_attribute(holder: Any) -> None:
    Scaled.scale = 0.5


def fresh_scaled() -> nn.Module:
    Scaled.scale = 1.0
    return Scaled()


CASES: dict[str, Case] = {
    "nothing": Case(),
    "lr": Case(epoch=hyper(lr=0.0)),
    "momentum": Case(epoch=hyper(momentum=0.0)),
    "weight_decay": Case(epoch=hyper(weight_decay=0.3)),
    "lr every step": Case(step=lambda holder, n: holder.optimizer.param_groups[0].update(lr=0.05 / (n + 1))),
    "dropout p": Case(Dropping, after_third(lambda holder: setattr(holder.model.middle, "p", 0.0))),
    "dropout": Case(Dropping),
    "batch norm to eval": Case(Normed, after_third(lambda holder: holder.model.middle.eval())),
    "layer drop": Case(LayerDrop),
    "numpy": Case(NumPyNoise),
    "own generator": Case(OwnGenerator),
    "noise from the host": Case(HostNoise),
    "counter": Case(Counter),
    "global counter": Case(GlobalCounter),
    "branch on values": Case(Branch),
    "print": Case(Prints),
    "memory": Case(Memory),
    "iterator": Case(Iterated),
    "freeze": Case(epoch=after_third(lambda holder: holder.model.last.bias.requires_grad_(False))),
    "unfreeze": Case(Frozen, after_third(unfreeze)),
    "hook": Case(
        epoch=after_third(lambda holder: holder.model.first.register_forward_hook(lambda m, i, out: out * 0.5))
    ),
    "gradient hook": Case(epoch=after_third(lambda holder: holder.model.last.weight.register_hook(lambda g: 2 * g))),
    "weight replaced": Case(epoch=after_third(replace_weight)),
    "layer replaced": Case(epoch=after_third(lambda holder: setattr(holder.model, "middle", nn.ReLU()))),
    "optimizer replaced": Case(epoch=after_third(exchange)),
    "loss weight": Case(epoch=after_third(lambda holder: ALPHA.__setitem__(0, 0.1)), loss=weighted),
    "attribute of an object": Case(
        fresh_scaled, after_third(lambda holder: setattr(holder.model.options, "factor", 0.5))
    ),
    "entry of a table": Case(
        fresh_scaled, after_third(lambda holder: holder.model.options.table["a"].__setitem__(0, 0.5))
    ),
    "class attribute": Case(fresh_scaled, after_third(set_class_attribute)),
    "tensor on the host": Case(fresh_scaled, after_third(lambda holder: holder.model.on_host.fill_(0.5))),
}


class Adapter(Callback):
    """A case's two functions as a callback; the Trainer is the holder."""

    def __init__(self, case: Case) -> None:
        self.case, self.epochs = case, 0
        if case.step is None:
            self.on_step_end = super().on_step_end  # as if it were not overridden

    def on_step_end(self, trainer: Any) -> None:
        self.case.step(trainer, trainer.step)

    def on_epoch_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        if self.case.epoch is not None:
            self.case.epoch(trainer, self.epochs)
        self.epochs += 1


def by_hand(case: Case, device: torch.device, rank: int = 0, world: int = 1) -> tuple[list[float], torch.Tensor, int]:
    """Mean losses of the epochs, the final weights, and the lines printed, of a loop without the Trainer."""
    SEEN.clear()
    model, loss = case.model().to(device), case.loss()
    holder = types.SimpleNamespace(model=model, optimizer=case.optimizer(model))
    seed_all(7 + rank)
    torch.randint(2**62, ())  # as the Trainer draws the seed of its shuffles
    runner = model
    if world > 1:
        devices = [device] if device.type == "cuda" else None
        runner = nn.parallel.DistributedDataParallel(model, devices, find_unused_parameters=True)
    inputs, target = (tensor.to(device) for tensor in data())
    means, steps, share = [], 0, BATCH // world
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for epoch in range(EPOCHS):
            losses = []
            for begin in range(rank * share, ROWS, BATCH):
                holder.optimizer.zero_grad()
                value = loss(runner(inputs[begin : begin + share]), target[begin : begin + share])
                value.backward()
                if world > 1 and case.model is Frozen and epoch > 2:
                    average(model.first.parameters(), world)
                holder.optimizer.step()
                losses.append(value.detach())
                steps += 1
                if case.step is not None:
                    case.step(holder, steps)
            means.append(torch.stack(losses).mean())
            if case.epoch is not None:
                case.epoch(holder, epoch)
    if world > 1:
        average_of(means, world)
    return [mean.item() for mean in means], vector(model), printed.getvalue().count("\n")


def average(parameters: Any, world: int) -> None:
    """DDP leaves out what became trainable after it was made."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def average_of(means: list[torch.Tensor], world: int) -> None:
    for mean in means:
        dist.all_reduce(mean)
        mean /= world


def vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])


def by_trainer(case: Case, gpus: int = 0, graph: bool = False, world: int = 1) -> tuple[Any, torch.Tensor, int, str]:
    """The same from the Trainer, and its `graph_status`."""
    SEEN.clear()
    model = case.model()
    if gpus:
        model.to("cuda")
    strategy = Distributed(find_unused_parameters=True) if world > 1 else "single"
    trainer = Trainer(EPOCHS, gpus, progress=False, graph=graph, strategy=strategy, callbacks=[Adapter(case)], seed=7)
    batches = Tensors(*data(), batch_size=BATCH // world, shuffle=False)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = trainer.fit(model, batches, loss=case.loss(), optimizer=case.optimizer(model))
    losses = [entry["train_loss"] for entry in history]
    return losses, vector(model), printed.getvalue().count("\n"), trainer.graph_status


def outcome(function: Callable[[], Any]) -> Any:
    """What a training gave, or the error that it ended with."""
    try:
        return function()
    except RuntimeError as error:
        return error


def differs(mine: Any, theirs: Any) -> str | None:
    if isinstance(mine, RuntimeError) or isinstance(theirs, RuntimeError):
        return None if type(mine) is type(theirs) else f"{mine!r} and {theirs!r}"
    if not np.allclose(mine[0], theirs[0], rtol=1e-5):
        return f"losses {mine[0]} and {theirs[0]}"
    if not torch.allclose(mine[1], theirs[1], rtol=1e-4, atol=1e-6):
        return "weights"
    return None if mine[2] == theirs[2] else f"{mine[2]} and {theirs[2]} lines"


def main() -> None:
    torch.set_num_threads(1)
    rank, world, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), wt.num_gpus()
    device = wt.gpu(int(os.environ["LOCAL_RANK"]) % gpus) if gpus else wt.cpu()
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    wrong = {}
    for name, case in CASES.items():
        theirs = outcome(functools.partial(by_trainer, case, int(bool(gpus)), True, world))
        mine = outcome(functools.partial(by_hand, case, device, rank, world))
        difference = differs(mine, theirs)
        if difference is not None:
            wrong[name] = difference
    found: list[Any] = [None] * world
    dist.all_gather_object(found, wrong)
    if rank == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"cases": len(CASES), "wrong": found}, file)
    dist.barrier()
    os._exit(0)  # a process group hangs at its end where DDP has raised, as it does when a parameter is frozen


if __name__ == "__main__":
    main()
