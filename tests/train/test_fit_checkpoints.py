"""Checkpoints: resumed trainings are bit-equal, damage is refused, everything moves between devices."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import kill
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import ADAM, SHARDED, housing, launch_trainings, network, weights

import windtunnel
from windtunnel import torch as wt
from windtunnel.errors import FileFormatError, InternalError, UsageError
from windtunnel.train import (
    Callback,
    Checkpoints,
    EarlyStopping,
    Trainer,
    load_parameters,
    read_checkpoint,
    save_parameters,
)
from windtunnel.train.checkpoint import STATE, Encoder, Snapshot, decode, folders, write_checkpoint


class Crash(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step == self.at:
            raise RuntimeError("crash")


def loader() -> DataLoader:
    return DataLoader(TensorDataset(*housing()), 16, shuffle=True)


def seeded_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(4)
    return DataLoader(list(zip(*housing(), strict=True)), 16, shuffle=True, generator=generator)


class Noisy(torch.utils.data.Dataset):
    """Rows with noise that is drawn from PyTorch's generator when they are read."""

    def __len__(self) -> int:
        return 101

    def __getitem__(self, index: int):
        inputs, target = housing()
        return inputs[index] + torch.randn(13), target[index]


def noisy_loader() -> DataLoader:
    return DataLoader(Noisy(), 16, shuffle=True)


def train(data, folder: Path | None = None, crash: int | None = None, resume: bool = False, **options) -> Trainer:
    """4 epochs of 7 steps, with dropout, a schedule and a checkpoint at every third step."""
    model = network(0.3)
    callbacks = [EarlyStopping("train_loss", patience=50)] + ([Crash(crash)] if crash else [])
    checkpoint = Checkpoints(folder, every_steps=3) if folder else False
    trainer = Trainer(4, progress=False, seed=5, checkpoint=checkpoint, callbacks=callbacks, **options)
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.9)
    arguments = {"loss": nn.MSELoss(), "optimizer": ADAM, "scheduler": schedule, "batch_size": 16, "resume": resume}
    if crash:
        with pytest.raises(RuntimeError, match="crash"):
            trainer.fit(model, data, housing(), **arguments)
    else:
        trainer.fit(model, data, housing(), **arguments)
    return trainer


@pytest.mark.parametrize("crash", [2, 4, 7, 16])
@pytest.mark.parametrize("make", [loader, seeded_loader, noisy_loader, housing])
def test_resumed_training_is_bit_equal(make, crash, tmp_path):
    expected = train(make())
    train(make(), tmp_path, crash=crash)
    resumed = train(make(), tmp_path, resume=True)
    assert torch.equal(weights(resumed.model), weights(expected.model))
    assert resumed.history == expected.history


@pytest.mark.parametrize("crash", [5, 15, 16])  # in the first epoch, at the second one's end, in the third
def test_loaders_whose_workers_persist_are_resumed_bit_equal(crash, tmp_path):
    def fit(folder: Path, crash: int | None = None, resume: bool = False) -> Trainer:
        data, workers = list(zip(*housing(), strict=True)), {"num_workers": 1, "persistent_workers": True}
        callbacks = [Crash(crash)] if crash else []
        trainer = Trainer(4, progress=False, seed=5, checkpoint=Checkpoints(folder, every_steps=3), callbacks=callbacks)
        loaders = DataLoader(data, 16, shuffle=True, **workers), DataLoader(data, 50, **workers)
        trainer.fit(network(0.3), *loaders, loss=nn.MSELoss(), optimizer=ADAM, resume=resume)
        return trainer

    expected = fit(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="crash"):
        fit(tmp_path / "parts", crash)
    resumed = fit(tmp_path / "parts", resume=True)
    assert torch.equal(weights(resumed.model), weights(expected.model))
    assert resumed.history == expected.history


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"precision": "fp16"}, {"gradient_clip_val": 0.1}])
def test_resumed_training_is_bit_equal_with(options, tmp_path):
    expected = train(loader(), **options)
    train(loader(), tmp_path, crash=10, **options)
    resumed = train(loader(), tmp_path, resume=True, **options)
    assert torch.equal(weights(resumed.model), weights(expected.model))
    assert resumed.history == expected.history


@pytest.mark.parametrize(("count", "make"), [(1, noisy_loader), (1, housing), (3, loader)])
def test_resumed_training_on_emulated_gpus_is_bit_equal(session, count, make, tmp_path):
    expected = train(make(), num_gpus=count)
    train(make(), tmp_path, crash=11, num_gpus=count)
    resumed = train(make(), tmp_path, resume=True, num_gpus=count)
    assert torch.equal(weights(resumed.model), weights(expected.model))


def test_resume_of_a_finished_training_changes_nothing(tmp_path):
    done = train(housing(), tmp_path)
    again = train(housing(), tmp_path, resume=True)
    assert torch.equal(weights(again.model), weights(done.model))
    assert again.history == done.history


def test_an_earlier_training_is_not_overwritten_by_chance(tmp_path):
    train(housing(), tmp_path)
    with pytest.raises(UsageError, match="go on from them with fit"):
        train(housing(), tmp_path)


# mission 130
@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (1, 2)])
def test_training_moves_between_numbers_of_gpus(session, before, after, tmp_path):
    train(housing(), tmp_path, crash=10, num_gpus=before)
    moved = train(housing(), tmp_path, resume=True, num_gpus=after)
    assert moved.step == 28
    assert len(moved.history) == 4


# mission 130
@pytest.mark.weekly
def test_training_moves_between_numbers_of_processes(tmp_path):
    inputs, target = housing()
    options = {"batch_size": 48, "folder": str(tmp_path / "checkpoints"), "max_epochs": 1}
    launch_trainings(3, tmp_path, ("ddp", "tensors", options))
    again = options | SHARDED | {"resume": True, "max_epochs": 3}
    (resumed,) = launch_trainings(2, tmp_path, ("fsdp", "tensors", again), gpus=bool(SHARDED))
    model = network()
    trainer = Trainer(3, progress=False, gradient_clip_val=1.0)
    from windtunnel.train import Tensors

    trainer.fit(model, Tensors(inputs, target, batch_size=48, shuffle=False), loss=nn.MSELoss(), optimizer=ADAM)
    torch.testing.assert_close(torch.tensor(resumed["weights"]), weights(model), rtol=1e-4, atol=1e-5)


def test_newest_and_best_are_kept(tmp_path):
    trainer = train(housing(), tmp_path)
    names = [path.name for path in folders(tmp_path)]
    assert "step-0000000028-end" in names
    best, value = Checkpoints(tmp_path).best()
    assert value == min(entry["val_loss"] for entry in trainer.history)
    assert best.exists()
    assert len(names) <= 4
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", STATE])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_damaged_checkpoint_is_refused_and_the_one_before_is_used(name, damage, tmp_path):
    train(housing(), tmp_path)
    *_, before, last = folders(tmp_path)
    path = last / name
    content = path.read_bytes()
    middle = len(content) // 2
    changed = {
        "truncate": content[:-7],
        "flip": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
    }
    path.unlink() if damage == "remove" else path.write_bytes(changed[damage])
    with pytest.raises(FileFormatError, match=r"checkpoint .*step-0000000028-end is damaged"):
        read_checkpoint(last)
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        state = Checkpoints(tmp_path).load()
    assert state["position"] == read_checkpoint(before)["position"]


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="has no complete checkpoint"):
        Trainer(1, progress=False).fit(network(), housing(), loss=nn.MSELoss(), optimizer=ADAM, resume=tmp_path)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    train(housing(), tmp_path)
    arguments = {"loss": nn.MSELoss(), "optimizer": ADAM, "resume": tmp_path, "allow_changes": True}
    with pytest.raises(UsageError, match="the checkpoint is of a different model"):
        Trainer(9, progress=False).fit(nn.Linear(13, 1), housing(), **arguments)


# mission 130
def test_parameters_are_written_and_read_across_devices(session, tmp_path):
    model = network().to("cuda:1")
    save_parameters(model, tmp_path / "model.safetensors")
    on_cpu = load_parameters(nn.Sequential(*network(), nn.Identity())[:4], tmp_path / "model.safetensors")
    on_gpu = load_parameters(network().to("cuda:0"), tmp_path / "model.safetensors")
    assert wt.device_of(on_cpu) == wt.cpu()
    assert wt.device_of(on_gpu) == wt.gpu(0)
    assert torch.equal(weights(on_cpu), weights(model))
    assert torch.equal(weights(on_gpu), weights(model))


# mission 130
def test_parameters_are_read_from_the_newest_checkpoint(tmp_path):
    trained = train(housing(), tmp_path).model
    assert torch.equal(weights(load_parameters(network(), tmp_path)), weights(trained))


def test_tied_parameters_are_kept_once(tmp_path):
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    save_parameters(tied, tmp_path / "tied.safetensors")
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other[1].weight = other[0].weight
    load_parameters(other, tmp_path / "tied.safetensors")
    assert torch.equal(other[1].weight, tied[0].weight)
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "tied.safetensors")) == {"0.weight", "0.bias", "1.bias"}


def test_plain_data_survives():
    value = {"a": [1, 2.5, float("inf"), None, True, "text", b"\0\1"], 3: (1, (2,)), "$odd": {}, "x": torch.arange(3)}
    encoder = Encoder()
    text = json.dumps(encoder.encode(value, "root"), allow_nan=False)
    back = decode(json.loads(text), encoder.tensors)
    assert torch.equal(back.pop("x"), value.pop("x"))
    assert back == value


def test_what_only_pickle_could_keep_is_refused():
    with pytest.raises(UsageError, match=r"cannot hold rest\.callbacks\.0, a function"):
        Encoder().encode([lambda: 0], "rest.callbacks")


def itself() -> list:
    state: list = []
    state.append(state)
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.eye(2).to_sparse(), "cannot hold rest.callbacks.0, a sparse tensor: it keeps"),
        (torch.eye(2).to_sparse_csr(), "a sparse tensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "a quantized tensor"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "a nested tensor"),
        (torch.empty(2, device="meta"), "a tensor without data"),
        (np.longdouble(1), "100 levels deep, or holds itself"),
        (itself(), "100 levels deep, or holds itself"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_no_file_keeps_is_refused_in_a_sentence(state, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Snapshot({"model": {}, "callbacks": [state]})


def test_complex_numbers_and_any_names_are_kept(tmp_path):
    state = {"double": torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128).conj(), "\ud800": torch.arange(2.0)}
    write_checkpoint(tmp_path / "step-1", Snapshot({"model": {"weight": state["double"]}, "callbacks": [state]}))
    found = read_checkpoint(tmp_path / "step-1")
    for back in (found["callbacks"][0]["double"], found["model"]["weight"]):
        assert back.dtype == torch.complex128
        assert torch.equal(back, state["double"])
    assert torch.equal(found["callbacks"][0]["\ud800"], torch.arange(2.0))


def test_a_snapshot_is_not_changed_by_later_steps(tmp_path):
    weight = torch.zeros(3)
    snapshot = Snapshot({"model": {"weight": weight}})
    weight.fill_(7)
    write_checkpoint(tmp_path / "step-1", snapshot)
    assert torch.equal(read_checkpoint(tmp_path / "step-1")["model"]["weight"], torch.zeros(3))


def test_a_copy_that_is_not_what_the_gpu_held_is_not_written(tmp_path):
    with windtunnel.emulate("1"):
        snapshot = Snapshot({"model": {"weight": torch.arange(5.0, device="cuda")}})
        snapshot.model["weight"].fill_(3)  # before it arrived, and again after
        torch.cuda.synchronize()
        snapshot.model["weight"][2] = 1e38
        with pytest.raises(InternalError, match="copy of weight in host memory is not what the GPU held"):
            write_checkpoint(tmp_path / "step-1", snapshot)
    assert not list(tmp_path.iterdir())


def test_a_file_with_other_values_than_the_step_left_is_refused(tmp_path):
    snapshot = Snapshot({"model": {"weight": torch.arange(5.0), "c": torch.ones(2, dtype=torch.complex64)}})
    snapshot.model["weight"][1] = 1e38
    write_checkpoint(tmp_path / "step-1", snapshot)
    with pytest.raises(FileFormatError, match=r"weight in model\.safetensors is not what was trained"):
        read_checkpoint(tmp_path / "step-1")


def test_an_error_of_the_writer_is_raised(tmp_path):
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(tmp_path / "file" / "folder")
    checkpoints.save({"model": {}}, 1, False, {})
    with pytest.raises(UsageError, match=r"step-0000000001 could not be written to .*folder \(Not a directory\)"):
        checkpoints.close()


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    """Goes over to another schedule after an epoch, as that of ildoonet/pytorch-gradual-warmup-lr does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.after = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return self.base_lrs if self.last_epoch < 1 else self.after.get_last_lr()

    def step(self) -> None:
        if self.last_epoch >= 1:
            self.after.step()
        super().step()


def test_a_schedule_that_holds_another_is_resumed(tmp_path):
    """https://github.com/ildoonet/pytorch-gradual-warmup-lr/issues/27: the resumed one led another optimizer."""

    def train(folder: str, crash: int | None = None, resume: bool = False) -> tuple[nn.Module, float]:
        model = network()
        optimizer = ADAM(model.parameters())
        trainer = Trainer(5, progress=False, checkpoint=tmp_path / folder, callbacks=[Crash(crash)] if crash else [])
        with contextlib.suppress(RuntimeError):
            trainer.fit(
                model, DataLoader(TensorDataset(*housing()), 16), loss=nn.MSELoss(), optimizer=optimizer,
                scheduler=Warmup(optimizer), resume=resume,
            )  # fmt: skip
        return model, optimizer.param_groups[0]["lr"]

    whole, rate = train("whole")
    train("cut", crash=25)
    resumed, again = train("cut", resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert again == rate == 0.01 / 2**4


PROGRAM = """
import sys, torch
sys.path.insert(0, {helpers!r})
from training import ADAM, housing, network
from torch import nn
from windtunnel.train import Callback, Trainer
class Say(Callback):
    def on_step_end(self, trainer):
        if trainer.step == 20:
            print("running", flush=True)
torch.set_num_threads(1)
Trainer(10**6, progress=False, checkpoint={folder!r}, callbacks=[Say()]).fit(
    network(), housing(), loss=nn.MSELoss(), optimizer=ADAM, batch_size=16)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_preemption_saves_and_exits_with_a_code(number, tmp_path):
    program = PROGRAM.format(helpers=str(Path(__file__).parent), folder=str(tmp_path / "checkpoints"))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert child.stdout.readline() == "running\n"
    child.send_signal(number)
    assert child.wait(timeout=60) == 128 + number
    child.stdout.close()
    state = Checkpoints(tmp_path / "checkpoints").load()
    assert state["position"]["step"] >= 20


class Told(nn.Module):
    """A network that gets SIGTERM in the given forward pass of its evaluations."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.network, self.at, self.passes = network(dropout=0.3), at, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += not self.training
        if not self.training and self.passes == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.network(inputs)


@pytest.mark.parametrize("every_steps", [None, 7])
@pytest.mark.parametrize("at", [2, 8])
def test_a_validation_is_left_for_a_signal(at, every_steps, tmp_path):
    """https://github.com/goodfire-ai/spd/issues/677: a signal waited for the end of the evaluation."""

    def train(folder: str, at: int | None, resume: bool = False) -> tuple[Told, list[dict]]:
        model = Told(at)
        torch.manual_seed(5)
        checkpoints = Checkpoints(tmp_path / folder, every_steps=every_steps, every_epochs=None)
        validation = DataLoader(Noisy(), 20, shuffle=True)
        trainer = Trainer(2, progress=False, checkpoint=checkpoints)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)) if at else contextlib.nullcontext():
            trainer.fit(model, loader(), validation, loss=nn.MSELoss(), optimizer=ADAM, resume=resume)
        return model, trainer.history

    whole, history = train("whole", None)
    assert train("left", at)[0].passes == at
    assert [folder.name for folder in folders(tmp_path / "left")][-1] == f"step-{7 if at == 2 else 14:010}"
    resumed, again = train("left", None, resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert again == history


LONG_ENOUGH_TO_BE_INTERRUPTED = """
import sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
import kill
kill.torch.set_num_threads(1)
kill.train(Path({folder!r}), {epochs})
"""


@pytest.mark.long
@pytest.mark.parametrize("gap_s", [0.001, 0.05])
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM),
    ],
)
def test_impatient_signals_cost_nothing_that_was_saved(numbers, gap_s, tmp_path):
    epochs, folder = 16, tmp_path / "checkpoints"
    program = LONG_ENOUGH_TO_BE_INTERRUPTED.format(
        helpers=str(Path(__file__).parent), folder=str(folder), epochs=epochs
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    while not (folder.exists() and folders(folder)):
        assert child.poll() is None
        time.sleep(0.005)
    for number in numbers:
        child.send_signal(number)
        time.sleep(gap_s)
    assert child.wait(timeout=60) in {-signal.SIGINT, *(128 + number for number in numbers), -signal.SIGTERM}
    assert {path.name for path in folders(folder)} == kill.whole_steps(folder)
    resumed = kill.train(folder, epochs)
    assert torch.equal(weights(resumed), weights(kill.train_undisturbed(epochs)))


def test_former_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    train(housing())
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [kill.Series(6), kill.Series(6, back=0.5), kill.Series(6, writing=True), kill.Series(6, emulated=True)]
)
def test_killed_trainings_lose_nothing(how):
    outcome = kill.series(6, 1, how)
    assert outcome.kills == 6
    assert outcome.writing > 0 or not how.writing
    assert (outcome.lost, outcome.damaged, outcome.equal) == (0, 0, True)
