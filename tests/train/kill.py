"""Kill a training at random moments, start it again, and see that nothing is lost: kill.py [--kills N] [--seed S].

A process that has imported PyTorch forks one training after another; each gets SIGKILL after a random time and the
next resumes, with `--back 0.3` three in ten of them from an older checkpoint. With `--ranks 2` a training is two
processes, of which one, drawn, is killed first and the other one right after it, as a launcher does. With `--writing` a
kill waits until the training's thread writes a checkpoint, and `--emulated` trains on an emulated GPU, whose tensors
are copied asynchronously. With `--ranks 2,3` the number of processes is drawn at each start. With `--varied` each
training's strategy, data, validation, callbacks and schedule are drawn, and a kill comes at a drawn forward pass, half
of them while it validates. Counted: kills, and those in the middle of a write or while it validates; kills after which
the newest whole checkpoint is older than after the kill before (lost); checkpoints that are there but not whole
(damaged); rows that an epoch has not seen once; and whether the final weights are those of a training that nobody
stopped, bit for bit (within 1e-4 where the number of processes changed).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked safely

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from training import ADAM, housing, network, weights

import windtunnel
from windtunnel.errors import FileFormatError
from windtunnel.train import Callback, Checkpoints, EarlyStopping, Tensors, Trainer
from windtunnel.train.checkpoint import folders, newest, read_checkpoint

ROWS_PER_STEP = 48
"""Of all processes together where their number changes."""


class Outcome(NamedTuple):
    """What a series of kills came to."""

    kills: int
    trainings: int
    lost: int
    damaged: int
    writing: int
    misread: int
    validating: int
    equal: bool


class Series(NamedTuple):
    """How trainings are killed: see this file's first lines."""

    epochs: int = 12
    back: float = 0.0
    ranks: tuple[int, ...] = (1,)
    writing: bool = False
    emulated: bool = False
    varied: bool = False


class Recipe(NamedTuple):
    """What is trained, and how: see RECIPES for what is drawn."""

    strategy: str = "auto"
    ranks: int = 1
    gpus: int = 0
    data: str = "loader"
    validation: str = "tensors"
    schedule: str = "none"
    callbacks: bool = False
    accumulate: int = 1
    every_steps: int = 2

    @classmethod
    def draw(cls, dice: random.Random) -> Recipe:
        place = dice.choice(PLACES)
        return cls(*place, *(dice.choice(choices) for choices in RECIPES.values()))


USUAL = Recipe()

PLACES = [("single", 1, 0), ("single", 1, 1), ("dp", 1, 2), ("ddp", 2, 0), ("ddp", 2, 2), ("fsdp", 2, 2)]
"""A strategy, the number of processes, and the emulated GPUs."""

RECIPES: dict[str, tuple[Any, ...]] = {
    "data": ("loader", "tensors", "rows", "batches"),
    "validation": ("tensors", "loader", "drawn", "none"),
    "schedule": ("none", "plateau", "step", "cosine"),
    "callbacks": (False, True),
    "accumulate": (1, 1, 2),
    "every_steps": (1, 2, 3),
}


class KilledAt:
    """SIGKILLs its process in the given forward pass, counted in training or in evaluation."""

    def __init__(self, passes: int, evaluating: bool, mark: Path) -> None:
        self.passes, self.evaluating, self.mark = passes, evaluating, mark

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if module.training != self.evaluating:
            self.passes -= 1
        if self.passes < 0:
            if self.evaluating:
                self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Smoothed(Callback):
    """A callback whose state decides what the training does: it lowers a learning rate by the losses it has seen."""

    def __init__(self) -> None:
        self.mean, self.steps = 0.0, 0

    def on_step_end(self, trainer: Any) -> None:
        self.steps += 1

    def on_epoch_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.mean = 0.5 * self.mean + 0.5 * metrics["train_loss"]
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 1 - 1e-3 * min(1.0, self.mean) - 1e-4 * (self.steps % 3)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.steps = state["mean"], state["steps"]


class SeenRows(Callback):
    """Writes the rows that this process trains on, a file a step: ROWS/STEP-RANK."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.seen = folder, list[int]()
        folder.mkdir(parents=True, exist_ok=True)
        self.numbers = {row: number for number, row in enumerate(housing()[0][:, 0].tolist())}
        model.register_forward_pre_hook(self.note)

    def note(self, module: nn.Module, inputs: Any) -> None:
        if module.training:
            self.seen += [self.numbers[row] for row in inputs[0][:, 0].tolist()]

    def on_step_end(self, trainer: Any) -> None:
        content = json.dumps({"epoch": trainer.epoch, "rows": self.seen})
        (self.folder / f"{trainer.step:06d}-{os.environ.get('RANK', '0')}").write_text(content, encoding="utf-8")
        self.seen = []


def train(
    folder: Path,
    epochs: int,
    resume: bool | Path = True,
    total_rows: int = 0,
    recipe: Recipe = USUAL,
    killed: KilledAt | None = None,
) -> nn.Module:
    """One training with dropout, a shuffled loader and a checkpoint every second step, resumed if there is one.

    With `total_rows` it is without dropout and of so many rows a step in all processes, and the rows are written down.
    """
    model = network(0.0 if total_rows else 0.3)
    share = total_rows // int(os.environ.get("WORLD_SIZE", "1")) if total_rows else 16
    checkpoints = Checkpoints(folder, every_steps=recipe.every_steps, keep=2)
    callbacks: list[Callback] = [SeenRows(rows_of(folder), model)] if total_rows else []
    if recipe.callbacks:
        callbacks += [Smoothed(), EarlyStopping("train_loss", patience=2, min_delta=0.01)]
    if killed is not None:
        model.register_forward_pre_hook(killed)
    trainer = Trainer(
        epochs, recipe.gpus, progress=False, checkpoint=checkpoints, seed=11, callbacks=callbacks,
        strategy=recipe.strategy, accumulate=recipe.accumulate,
    )  # fmt: skip
    data, validation = training_data(recipe.data, share), validation_data(recipe.validation)
    schedule = SCHEDULES[recipe.schedule]
    trainer.fit(model, data, validation, loss=nn.MSELoss(), optimizer=ADAM, scheduler=schedule, resume=resume)
    return whole(model, trainer)


def whole(model: nn.Module, trainer: Trainer) -> nn.Module:
    """The model, or a copy on the CPU with the parameters gathered from all processes."""
    if trainer.placement.name != "fsdp":
        return model
    copy = network()
    with torch.no_grad():
        for own, parameter in zip(copy.parameters(), model.parameters(), strict=True):
            own.copy_(trainer.placement.full(parameter).cpu())
    return copy


def training_data(kind: str, share: int) -> Any:
    inputs, target = housing()
    if kind == "tensors":
        return Tensors(inputs, target, batch_size=share)
    if kind == "rows":
        return DataLoader(TensorDataset(inputs, target), share, shuffle=True)
    if kind == "batches":
        return [(inputs[i : i + share].clone(), target[i : i + share].clone()) for i in range(0, len(inputs), share)]
    return DataLoader(list(zip(inputs, target, strict=True)), share, shuffle=True)


def validation_data(kind: str) -> Any:
    inputs, target = housing(37)
    if kind == "none":
        return None
    if kind == "tensors":
        return housing()
    if kind == "loader":
        return DataLoader(TensorDataset(inputs, target), 8)
    own = torch.Generator().manual_seed(5)
    rows = RandomSampler(range(37), replacement=True, num_samples=20, generator=own)
    return DataLoader(TensorDataset(inputs, target), 8, sampler=rows)


SCHEDULES: dict[str, Any] = {
    "none": None,
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2),
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
}


def rows_of(folder: Path) -> Path:
    """Where the rows of a training are written."""
    return folder.with_suffix(".rows")


def start(
    folder: Path,
    result: Path,
    resume: bool | Path,
    how: Series,
    ranks: int,
    recipe: Recipe = USUAL,
    killed: tuple[int, KilledAt] | None = None,
) -> list[int]:
    """Fork a training; its processes' numbers, a rank each. `killed` is the rank that dies, and when."""
    port = free_port() if ranks > 1 else 0
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child:
            children.append(child)
            continue
        if ranks > 1:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ.update({name: str(value) for name, value in place.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        total_rows = ROWS_PER_STEP if len(how.ranks) > 1 else 0
        gpus = recipe.gpus or int(how.emulated)
        own_end = killed[1] if killed is not None and killed[0] == rank else None
        failed = True
        try:
            with windtunnel.emulate(str(gpus)) if gpus else nullcontext():
                found = weights(train(folder, how.epochs, resume, total_rows, recipe, own_end))
            if rank == 0:
                torch.save(found, result)
            failed = False
        finally:  # where the other rank is killed, this one fails: it must not go on to remove this program's folders
            if failed:
                traceback.print_exc()
            os._exit(int(failed))
    return children


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def whole_steps(folder: Path) -> set[str]:
    """The names of the checkpoints that can be read."""
    return {path.name for path in folders(folder) if _reads(path)}


def _reads(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except FileFormatError:
        return False
    return True


def one_training(folder: Path, dice: random.Random, limit: int, how: Series) -> Outcome:
    """Kill one training until it ends by itself, at most `limit` times."""
    for one in (folder, rows_of(folder)):
        shutil.rmtree(one, ignore_errors=True)
    result, kills, lost, damaged, writing, validating = folder.with_suffix(".weights"), 0, 0, 0, 0, 0
    recipe = Recipe.draw(dice) if how.varied else USUAL
    mark = folder.with_suffix(".validating")
    result.unlink(missing_ok=True)
    newest_step = -1
    while True:
        resume: bool | Path = True
        if newest_step >= 0 and dice.random() < how.back:
            resume = dice.choice(folders(folder))
            newest_step = read_checkpoint(resume)["position"]["step"]
        ranks = recipe.ranks if how.varied else dice.choice(how.ranks)
        killed = None
        if how.varied and kills < limit:
            evaluating = recipe.validation != "none" and dice.random() < 0.5
            killed = dice.randrange(ranks), KilledAt(dice.randrange(16), evaluating, mark)
        children = start(folder, result, resume, how, ranks, recipe, killed)
        if how.varied:
            wait_for_an_end(children)
        elif kills < limit:
            time.sleep(dice.uniform(0.0, dice.choice((0.1, 0.5)) if ranks == 1 else 6.0))
            if how.writing:
                wait_for_a_write(folder, children)
                time.sleep(dice.uniform(0.0, 0.004))
            dice.shuffle(children)
            for child in children:
                os.kill(child, signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if not any(map(os.WIFSIGNALED, statuses)):
            assert not any(map(os.WEXITSTATUS, statuses)), f"a training failed: {recipe}"
            break
        kills += 1
        validating += mark.exists()
        mark.unlink(missing_ok=True)
        writing += bool(drafts(folder, children))
        named = {path.name for path in folders(folder)} if folder.exists() else set()
        damaged += len(named - whole_steps(folder))
        step = newest(folder)["position"]["step"] if named else -1
        lost += step < newest_step
        newest_step = max(newest_step, step)
        forget_rows(rows_of(folder), newest_step)
    misread = misread_rows(rows_of(folder), how.epochs) if len(how.ranks) > 1 else 0
    return Outcome(
        kills, 1, lost, damaged, writing, misread, validating, agrees(torch.load(result), folder, how, recipe)
    )


def wait_for_an_end(children: list[int]) -> None:
    """Until all processes have ended by themselves, or one has been killed; then the others are, too."""
    left = set(children)
    while left:
        for child in [child for child in left if ended(child)]:
            left.remove(child)
            status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            if status is not None and status.si_code == os.CLD_KILLED:
                for other in left:
                    os.kill(other, signal.SIGKILL)
                return
        time.sleep(0.002)


def drafts(folder: Path, children: list[int]) -> list[Path]:
    """The checkpoints that these processes have begun to write."""
    return [path for child in children for path in folder.glob(f".draft-*-{child}")]


def wait_for_a_write(folder: Path, children: list[int]) -> None:
    """Until one of the processes has begun to write a checkpoint, or has ended."""
    while not drafts(folder, children) and not any(ended(child) for child in children):
        time.sleep(0.0002)


def ended(child: int) -> bool:
    """Whether a process has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def forget_rows(folder: Path, step: int) -> None:
    """Remove what was written of steps that the next training repeats."""
    for path in folder.glob("*-*"):
        if int(path.name.split("-")[0]) > step:
            path.unlink()


def misread_rows(folder: Path, epochs: int) -> int:
    """How many rows of an epoch were not trained on, or more than once, over all epochs."""
    steps = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.iterdir())]
    count = len(housing()[0])
    seen = [[row for step in steps if step["epoch"] == epoch for row in step["rows"]] for epoch in range(epochs)]
    return sum(sum(rows.count(row) != 1 for row in range(count)) for rows in seen)


_UNDISTURBED: dict[int, nn.Module] = {}


def train_undisturbed(epochs: int) -> nn.Module:
    if epochs not in _UNDISTURBED:
        with tempfile.TemporaryDirectory() as folder:
            _UNDISTURBED[epochs] = train(Path(folder) / "undisturbed", epochs)
    return _UNDISTURBED[epochs]


def agrees(found: torch.Tensor, folder: Path, how: Series, recipe: Recipe) -> bool:
    """Whether these are the weights of a training that nobody stops."""
    if how.ranks == (1,) and not how.emulated and not how.varied:
        return bool(torch.equal(found, weights(train_undisturbed(how.epochs))))
    result = folder.with_suffix(".undisturbed")
    ranks = recipe.ranks if how.varied else how.ranks[0]
    for child in start(folder.with_name("undisturbed"), result, False, how, ranks, recipe):
        assert os.waitpid(child, 0)[1] == 0, "a training failed"
    expected = torch.load(result)
    for one in (folder.with_name("undisturbed"), rows_of(folder.with_name("undisturbed"))):
        shutil.rmtree(one, ignore_errors=True)
    if len(how.ranks) > 1:  # sums over other numbers of processes are rounded otherwise
        return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-5))
    if not torch.equal(found, expected) and how.varied:
        print(f"different by {float((found - expected).abs().max()):.1e}: {recipe}", file=sys.stderr)
    return bool(torch.equal(found, expected))


def series(kills: int, seed: int, how: Series) -> Outcome:
    """Trainings killed until `kills` SIGKILLs have been sent."""
    torch.set_num_threads(1)
    if how.varied:  # what forked trainings would each import
        importlib.import_module("torch.distributed.fsdp")
        with windtunnel.emulate("2"):
            torch.ones(1, device="cuda")
    dice = random.Random(seed)
    total = Outcome(0, 0, 0, 0, 0, 0, 0, True)
    with tempfile.TemporaryDirectory() as folder:
        while total.kills < kills:
            one = one_training(Path(folder) / "checkpoints", dice, kills - total.kills, how)
            equal = total.equal and one.equal
            counts = (mine + its for mine, its in zip(total[:-1], one[:-1], strict=True))
            total = Outcome(*counts, equal)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--back", type=float, default=0.0, help="the share of trainings that begin at an older checkpoint"
    )
    parser.add_argument("--ranks", default="1", help="the processes of a training; 2,3 draws one of them at each start")
    parser.add_argument("--writing", action="store_true", help="kill while a checkpoint is being written")
    parser.add_argument("--emulated", action="store_true", help="train on an emulated GPU")
    parser.add_argument("--varied", action="store_true", help="draw what is trained, and kill in forward passes")
    arguments = parser.parse_args()
    warnings.simplefilter("error")  # a damaged checkpoint is reported by a warning
    begin = time.monotonic()
    ranks = tuple(map(int, arguments.ranks.split(",")))
    how = Series(
        5 if arguments.varied else 12, arguments.back, ranks, arguments.writing, arguments.emulated, arguments.varied
    )
    done = series(arguments.kills, arguments.seed, how)
    spent = f"seed {arguments.seed}, {time.monotonic() - begin:.0f} s"
    moments = f"{done.writing} in the middle of a write" + (f", {done.validating} validating" if how.varied else "")
    print(f"{done.kills} SIGKILLs in {done.trainings} trainings, {moments} ({spent})")
    print(f"{done.lost} lost checkpoints, {done.damaged} damaged")
    changing = len(ranks) > 1
    if changing:
        print(f"{done.misread} rows of an epoch lost or seen twice")
    print("final weights", ("equal within 1e-4" if changing else "bit-equal") if done.equal else "DIFFERENT")
    sys.exit(0 if done.equal and not (done.lost or done.damaged or done.misread) else 1)


if __name__ == "__main__":
    main()
