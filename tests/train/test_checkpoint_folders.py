"""A folder of checkpoints through everything that may happen to it: going back, damage, two trainings, no room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from training import ADAM, housing, network, weights

from windtunnel.errors import FileFormatError, UsageError
from windtunnel.train import Callback, Checkpoints, Trainer
from windtunnel.train.checkpoint import MODEL, STATE, Snapshot, folders, newest, read_checkpoint, write_checkpoint
from windtunnel.train.checkpoints import BEST


class Crash(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step == self.at:
            raise RuntimeError("crash")


def train(folder: Path, crash: int = -1, resume: bool | Path = True, keep: int = 3, **options) -> Trainer:
    """4 epochs of 7 steps, with a checkpoint at every third step."""
    checkpoints = Checkpoints(folder, every_steps=3, keep=keep, **options)
    trainer = Trainer(4, progress=False, seed=5, checkpoint=checkpoints, callbacks=[Crash(crash)])
    arguments = {"loss": nn.MSELoss(), "optimizer": ADAM, "batch_size": 16, "resume": resume}
    if crash > 0:
        with pytest.raises(RuntimeError, match="crash"):
            trainer.fit(network(0.3), housing(), housing(), **arguments)
    else:
        trainer.fit(network(0.3), housing(), housing(), **arguments)
    return trainer


def names(folder: Path) -> list[str]:
    return [path.name for path in folders(folder)]


# ---------------------------------------------------------------- going back to an older checkpoint

STEPS = {"keep": 5, "every_epochs": None}  # of a training that crashes at step 23: after 9, 12, 15, 18 and 21


def test_a_training_that_goes_back_keeps_its_new_checkpoints(tmp_path):
    train(tmp_path, crash=23, **STEPS)
    oldest = folders(tmp_path)[0]
    assert newest(tmp_path)["position"]["step"] == 21
    train(tmp_path, crash=14, resume=oldest, every_epochs=None)
    assert oldest.name == "step-0000000009"
    assert newest(tmp_path)["position"]["step"] == 12
    assert names(tmp_path)[-1] == "step-0000000012"


def test_what_was_left_behind_is_put_aside_and_can_be_gone_on_from(tmp_path):
    train(tmp_path, crash=23, **STEPS)
    later = names(tmp_path)[1:]
    train(tmp_path, crash=14, resume=folders(tmp_path)[0], **STEPS)
    assert names(tmp_path / "branch-1") == later
    assert newest(tmp_path / "branch-1")["position"]["step"] == 21
    train(tmp_path, crash=17, resume=folders(tmp_path)[0], **STEPS)
    assert (tmp_path / "branch-2").is_dir()


def test_nothing_is_put_aside_before_there_is_a_new_checkpoint(tmp_path):
    train(tmp_path, crash=23, **STEPS)
    before = names(tmp_path)
    train(tmp_path, crash=10, resume=folders(tmp_path)[0], **STEPS)
    assert names(tmp_path) == before


def test_the_best_of_what_was_left_behind_goes_with_it(tmp_path):
    train(tmp_path, keep=9)
    first = next(path for path in folders(tmp_path) if path.name == "step-0000000021")
    best_before = Checkpoints(tmp_path).best()
    assert best_before[0].name == "step-0000000028-end"
    train(tmp_path, crash=23, resume=first, keep=9)
    assert json.loads((tmp_path / "branch-1" / BEST).read_text())["checkpoint"] == "step-0000000028-end"
    best, value = Checkpoints(tmp_path).best()
    ends = [read_checkpoint(path)["history"][-1]["val_loss"] for path in folders(tmp_path) if "end" in path.name]
    assert best.parent == tmp_path
    assert (value, len(ends)) == (min(ends), 2)


def test_newer_checkpoints_that_are_damaged_do_not_displace_new_ones(tmp_path):
    train(tmp_path, crash=23, **STEPS)
    for folder in folders(tmp_path)[1:]:
        (folder / STATE).write_text("{}")
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        train(tmp_path, crash=14, every_epochs=None)
    assert newest(tmp_path)["position"]["step"] == 12


def test_going_on_from_another_folder_spares_the_checkpoints_that_are_there(tmp_path):
    train(tmp_path / "other", crash=5)
    train(tmp_path / "own", crash=23)
    before = names(tmp_path / "own")
    with pytest.raises(UsageError, match="own holds checkpoints of an earlier training"):
        train(tmp_path / "own", resume=tmp_path / "other")
    assert names(tmp_path / "own") == before


def test_a_folder_that_is_named_is_the_trainers_own(tmp_path, monkeypatch):
    train(tmp_path / "run", crash=10)
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path / "run", resume=Path("run")).step == 28


# ---------------------------------------------------------------- what a checkpoint holds


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: {"a.b": x, "a": {"b": y}},
        lambda x, y: {1: x, "1": y},
        lambda x, y: {"a.b#2": x, "a": {"b#2": y}, "a.b": y},
        lambda x, y: [{"k": x, (1, 2): y}, {"(1, 2)": x}],
    ],
)
def test_tensors_whose_paths_are_alike_stay_apart(make, tmp_path):
    x, y = torch.zeros(2), torch.ones(2)
    write_checkpoint(tmp_path / "step-1", Snapshot({"model": {}, "callbacks": make(x, y)}))
    back = read_checkpoint(tmp_path / "step-1")["callbacks"]
    assert str(back) == str(make(x, y))


def test_model_state_whose_paths_are_alike_stays_apart(tmp_path):
    state = {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}
    write_checkpoint(tmp_path / "step-1", Snapshot({"model": state}))
    assert str(read_checkpoint(tmp_path / "step-1")["model"]) == str(state)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("content", ["[]", "null", "7", '"text"', "{}", "[" * 100_000, '{"format": 1}', "\xff"])
def test_a_damaged_state_falls_back_to_the_checkpoint_before(content, tmp_path):
    train(tmp_path, crash=23)
    *_, before, last = folders(tmp_path)
    (last / STATE).write_text(content, encoding="latin-1")
    with pytest.raises(FileFormatError):
        read_checkpoint(last)
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        assert newest(tmp_path)["position"] == read_checkpoint(before)["position"]


@pytest.mark.parametrize("name", [STATE, MODEL])
@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_damage(name, put, tmp_path):
    """A pipe that nobody writes to would be read without end."""
    train(tmp_path, crash=23)
    *_, before, last = folders(tmp_path)
    (last / name).unlink()
    put(last / name)
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        assert newest(tmp_path)["position"] == read_checkpoint(before)["position"]


def test_a_pipe_in_the_place_of_the_best_is_damage(tmp_path):
    train(tmp_path, keep=30)
    expected = Checkpoints(tmp_path).best()
    (tmp_path / BEST).unlink()
    os.mkfifo(tmp_path / BEST)
    with pytest.warns(UserWarning, match=r"best\.json is damaged"):
        assert Checkpoints(tmp_path).best() == expected


def test_what_is_no_checkpoint_is_not_taken_for_one(tmp_path):
    train(tmp_path, crash=23)
    before = names(tmp_path)
    (tmp_path / "step-by-step.txt").write_text("notes")
    (tmp_path / "step-notes").mkdir()
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "\xff", '{"checkpoint": "../elsewhere", "monitor": "val_loss", "value": 0}',
     '{"checkpoint": 3, "monitor": "val_loss", "value": "x"}'],
)  # fmt: skip
def test_a_damaged_best_is_found_again_among_the_checkpoints(content, tmp_path):
    train(tmp_path, keep=30)
    expected = Checkpoints(tmp_path).best()
    (tmp_path / BEST).write_text(content, encoding="latin-1")
    with pytest.warns(UserWarning, match=r"best\.json is damaged"):
        assert Checkpoints(tmp_path).best() == expected


def test_a_training_goes_on_over_a_damaged_best(tmp_path):
    train(tmp_path, crash=23, keep=30)
    (tmp_path / BEST).write_text("{")
    with pytest.warns(UserWarning, match=r"best\.json is damaged"):
        trainer = train(tmp_path, keep=30)
    best, value = Checkpoints(tmp_path).best()
    assert value == min(entry["val_loss"] for entry in trainer.history)
    assert best.exists()


def test_the_best_by_another_monitor_counts_for_nothing(tmp_path):
    train(tmp_path)
    assert Checkpoints(tmp_path, monitor="train_loss").best() is None


# ---------------------------------------------------------------- two trainings on one folder


class Meet(Callback):
    """Stops in the middle of a training until it may go on."""

    def __init__(self) -> None:
        self.training, self.go_on = threading.Event(), threading.Event()

    def on_step_end(self, trainer: Trainer) -> None:
        self.training.set()
        assert self.go_on.wait(60)


def test_a_second_training_of_this_process_is_refused(tmp_path):
    meet = Meet()
    trainer = Trainer(1, progress=False, checkpoint=tmp_path, callbacks=[meet])
    arguments = {"loss": nn.MSELoss(), "optimizer": ADAM, "batch_size": 16}
    first = threading.Thread(target=trainer.fit, args=(network(), housing()), kwargs=arguments)
    first.start()
    assert meet.training.wait(60)
    try:
        with pytest.raises(UsageError, match=f"another training .*{os.getpid()}.* writes to .*choose another folder"):
            train(tmp_path)
    finally:
        meet.go_on.set()
        first.join()
    assert train(tmp_path).step == 28
    assert list(tmp_path.glob(".*")) == []


HOLDER = """
import os, sys, time
from pathlib import Path
from windtunnel.train.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:  # as a DataLoader's worker, which outlives a parent that was killed
    time.sleep(60)
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_training_of_another_process_is_named_and_its_death_frees_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        number = int(holder.stdout.readline())
        with pytest.raises(UsageError, match=f"another training .process {number} on .*. writes to"):
            train(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert train(tmp_path).step == 28
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdin.close()
        holder.stdout.close()


# ---------------------------------------------------------------- folders that cannot be written to


def test_a_file_where_the_folder_should_be_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(UsageError, match=r"checkpoints cannot be written to .*file.* \((File exists|Not a dir)"):
            train(path)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("path", ["/sys/kernel", "/sys/windtunnel/checkpoints"])
def test_a_folder_that_may_not_be_written_to_is_said_before_training(path):
    with pytest.raises(UsageError, match=f"checkpoints cannot be written to {path}"):
        train(Path(path))


NO_ROOM = """
import resource, sys
sys.dont_write_bytecode = True  # what is imported under the limit would be cut short for every later process
sys.path.insert(0, {helpers!r})
import test_checkpoint_folders as folder_tests
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
folder_tests.train(Path({folder!r}))
"""


def test_a_full_disk_is_one_sentence_and_leaves_older_checkpoints_whole(tmp_path):
    train(tmp_path, crash=16)
    before = {name: read_checkpoint(tmp_path / name)["position"] for name in names(tmp_path)}
    program = NO_ROOM.format(helpers=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line == (
        f"windtunnel.errors.UsageError: the checkpoint step-0000000018 could not be written to {tmp_path} (File too "
        "large): make room, or let this process write to it, and go on from the previous checkpoint with resume=True."
    )
    assert {name: read_checkpoint(tmp_path / name)["position"] for name in names(tmp_path)} == before
    assert list(tmp_path.glob(".*")) == []
    assert torch.equal(weights(train(tmp_path).model), weights(train(tmp_path / "undisturbed").model))
