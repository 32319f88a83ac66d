"""Kill a training at random moments, start it again, and see that nothing is lost: kill.py [--kills N] [--seed S].

A process that has imported PyTorch forks one training after another; each gets SIGKILL after a random time and the
next resumes, with `--back 0.3` three in ten of them from an older checkpoint. With `--ranks 2` a training is two
processes, of which one, drawn, is killed first and the other one right after it, as a launcher does. Counted: kills;
kills after which the newest whole checkpoint is older than after the kill before (lost); checkpoints that are there but
not whole (damaged); and whether the final weights are those of a training that nobody stopped, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked safely

import torch
from torch import nn
from torch.utils.data import DataLoader
from training import ADAM, housing, network, weights

from understudy.errors import FileFormatError
from understudy.train import Checkpoints, Trainer
from understudy.train.checkpoint import folders, newest, read_checkpoint


class Outcome(NamedTuple):
    """What a series of kills came to."""

    kills: int
    trainings: int
    lost: int
    damaged: int
    equal: bool


def train(folder: Path, epochs: int, resume: bool | Path = True) -> nn.Module:
    """One training with dropout, a shuffled loader and a checkpoint every second step, resumed if there is one."""
    model = network(0.3)
    data = DataLoader(list(zip(*housing(), strict=True)), 16, shuffle=True)
    checkpoints = Checkpoints(folder, every_steps=2, keep=2)
    trainer = Trainer(epochs, progress=False, checkpoint=checkpoints, seed=11)
    trainer.fit(model, data, housing(), loss=nn.MSELoss(), optimizer=ADAM, resume=resume)
    return model


def start(folder: Path, epochs: int, result: Path, resume: bool | Path, ranks: int = 1) -> list[int]:
    """Fork a training; its processes' numbers, a rank each."""
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
        model = train(folder, epochs, resume)
        if rank == 0:
            torch.save(weights(model), result)
        os._exit(0)
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


def one_training(folder: Path, epochs: int, dice: random.Random, limit: int, back: float, ranks: int = 1) -> Outcome:
    """Kill one training until it ends by itself, at most `limit` times."""
    shutil.rmtree(folder, ignore_errors=True)
    result, kills, lost, damaged = folder.with_suffix(".weights"), 0, 0, 0
    result.unlink(missing_ok=True)
    newest_step = -1
    while True:
        resume: bool | Path = True
        if newest_step >= 0 and dice.random() < back:
            resume = dice.choice(folders(folder))
            newest_step = read_checkpoint(resume)["position"]["step"]
        children = start(folder, epochs, result, resume, ranks)
        if kills < limit:
            time.sleep(dice.uniform(0.0, dice.choice((0.1, 0.5)) if ranks == 1 else 6.0))
            dice.shuffle(children)
            for child in children:
                os.kill(child, signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if not any(map(os.WIFSIGNALED, statuses)):
            assert not any(map(os.WEXITSTATUS, statuses)), "a training failed"
            break
        kills += 1
        named = {path.name for path in folders(folder)} if folder.exists() else set()
        damaged += len(named - whole_steps(folder))
        step = newest(folder)["position"]["step"] if named else -1
        lost += step < newest_step
        newest_step = max(newest_step, step)
    expected = weights(train_undisturbed(epochs)) if ranks == 1 else undisturbed_ranks(folder, epochs, ranks)
    return Outcome(kills, 1, lost, damaged, bool(torch.equal(torch.load(result), expected)))


_UNDISTURBED: dict[int, nn.Module] = {}


def train_undisturbed(epochs: int) -> nn.Module:
    if epochs not in _UNDISTURBED:
        with tempfile.TemporaryDirectory() as folder:
            _UNDISTURBED[epochs] = train(Path(folder) / "undisturbed", epochs)
    return _UNDISTURBED[epochs]


def undisturbed_ranks(folder: Path, epochs: int, ranks: int) -> torch.Tensor:
    """The weights of a training of several processes that nobody stops."""
    result = folder.with_suffix(".undisturbed")
    for child in start(folder.with_name("undisturbed"), epochs, result, False, ranks):
        assert os.waitpid(child, 0)[1] == 0, "a training failed"
    found: torch.Tensor = torch.load(result)
    shutil.rmtree(folder.with_name("undisturbed"))
    return found


def series(kills: int, seed: int, epochs: int = 12, back: float = 0.0, ranks: int = 1) -> Outcome:
    """Trainings killed until `kills` SIGKILLs have been sent."""
    torch.set_num_threads(1)
    dice = random.Random(seed)
    total = Outcome(0, 0, 0, 0, True)
    with tempfile.TemporaryDirectory() as folder:
        while total.kills < kills:
            one = one_training(Path(folder) / "checkpoints", epochs, dice, kills - total.kills, back, ranks)
            equal = total.equal and one.equal
            counts = (mine + its for mine, its in zip(total[:4], one[:4], strict=True))
            total = Outcome(*counts, equal)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--back", type=float, default=0.0, help="the share of trainings that begin at an older checkpoint"
    )
    parser.add_argument("--ranks", type=int, default=1, help="the processes of a training")
    arguments = parser.parse_args()
    warnings.simplefilter("error")  # a damaged checkpoint is reported by a warning
    begin = time.monotonic()
    done = series(arguments.kills, arguments.seed, back=arguments.back, ranks=arguments.ranks)
    spent = f"seed {arguments.seed}, {time.monotonic() - begin:.0f} s"
    print(f"{done.kills} SIGKILLs in {done.trainings} trainings ({spent})")
    print(f"{done.lost} lost checkpoints, {done.damaged} damaged")
    print("final weights", "bit-equal" if done.equal else "DIFFERENT")
    sys.exit(0 if done.equal and not done.lost and not done.damaged else 1)


if __name__ == "__main__":
    main()
