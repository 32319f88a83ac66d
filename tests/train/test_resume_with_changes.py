"""A checkpoint of one training, and a training that is not quite the same: what differs is said, and asked for."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from training import housing, network

from windtunnel.errors import UsageError
from windtunnel.train import Callback, Checkpoints, Tensors, Trainer
from windtunnel.train.checkpoint import newest
from windtunnel.train.data import rest_of
from windtunnel.train.loop import Loop
from windtunnel.train.recipe import changes

ROWS = 101


def adam(**options):
    return functools.partial(torch.optim.Adam, **({"lr": 0.01} | options))


class Crash(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step == self.at:
            raise RuntimeError("crash")


class Seen(nn.Module):
    """The error of a network, with the rows that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, outputs, target):
        self.rows += target[:, 0].int().tolist()
        return (outputs - target).square().mean()


def numbered(shuffle: bool, batch_size: int, kind: str):
    """Rows whose target is their number."""
    inputs, target = housing(ROWS)[0], torch.arange(ROWS).float()[:, None]
    if kind == "tensors":
        return Tensors(inputs, target, batch_size=batch_size, shuffle=shuffle)
    if kind == "list":
        return list(zip(inputs.split(batch_size), target.split(batch_size), strict=True))
    return DataLoader(TensorDataset(inputs, target), batch_size, shuffle=shuffle)


def train(folder, optimizer=None, data=None, crash=-1, max_epochs=3, scheduler=None, **options):
    """3 epochs with a checkpoint at every second step; the trainer, and the numbers of the rows in their order."""
    trainer = Trainer(
        max_epochs,
        progress=False,
        seed=5,
        checkpoint=Checkpoints(folder, every_steps=2),
        callbacks=[Crash(crash)] if crash > 0 else [],
    )
    loss = Seen()
    data = numbered(True, 16, "tensors") if data is None else data
    arguments = {"loss": loss, "optimizer": optimizer or adam(), "resume": True, "scheduler": scheduler} | options
    if crash > 0:
        with pytest.raises(RuntimeError, match="crash"):
            trainer.fit(network(), data, **arguments)
    else:
        trainer.fit(network(), data, **arguments)
    return trainer, loss.rows


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (functools.partial(torch.optim.AdamW, lr=0.01), r"the optimizer was torch.optim.adam.Adam and is \S+AdamW"),
        (adam(lr=0.5), r"different settings: lr was 0.01 and is 0.5\. Give"),
        (
            adam(betas=(0.8, 0.99), weight_decay=0.1),
            r"betas was \[0.9, 0.999\] and is \[0.8, 0.99\]; weight_decay was 0",
        ),
        (lambda params: torch.optim.Adam([{"params": list(params), "lr": 0.02}]), "lr was 0.01 and is 0.02"),
    ],
)
def test_another_optimizer_is_refused_by_name(optimizer, message, tmp_path):
    train(tmp_path, crash=5)
    with pytest.raises(UsageError, match=message):
        train(tmp_path, optimizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 2}, r"different settings: accumulate was 1 and is 2\. Give"),
        ({"gradient_clip_val": 1}, "gradient_clip_val was 0.0 and is 1.0"),
        ({"precision": "bf16"}, "precision was fp32 and is bf16"),
    ],
)
def test_another_update_is_refused_by_name(options, message, tmp_path):
    def fit(**options):
        trainer = Trainer(1, progress=False, checkpoint=Checkpoints(tmp_path, asynchronous=False), **options)
        trainer.fit(network(), housing(ROWS), loss=nn.MSELoss(), optimizer=adam(), resume=True, **asked)

    asked = {}
    fit()
    with pytest.raises(UsageError, match=message):
        fit(**options)
    asked = {"allow_changes": True}
    fit(**options)


def test_another_loss_is_refused_by_name(tmp_path):
    def fit(loss):
        trainer = Trainer(1, progress=False, checkpoint=Checkpoints(tmp_path, asynchronous=False))
        trainer.fit(network(), housing(ROWS), loss=loss, optimizer=adam(), resume=True)

    fit(nn.functional.mse_loss)
    fit(nn.functional.mse_loss)
    with pytest.raises(UsageError, match=r"the loss was torch\.nn\.functional\.mse_loss and is .*l1_loss"):
        fit(nn.functional.l1_loss)


def test_what_only_carries_the_steps_out_may_change(tmp_path):
    train(tmp_path, crash=5)
    assert train(tmp_path, adam(foreach=True))[0].step == 21


def test_each_parameter_group_is_told_apart(tmp_path):
    def two(rate):
        def make(parameters):
            first, *others = parameters
            return torch.optim.SGD([{"params": [first]}, {"params": others, "lr": rate}], lr=0.01)

        return make

    train(tmp_path, two(0.1), crash=5)
    with pytest.raises(UsageError, match=r"different settings: lr of parameter group 1 was 0.1 and is 0.2"):
        train(tmp_path, two(0.2))


def test_a_learning_rate_that_a_schedule_changed_is_no_difference(tmp_path):
    schedule = functools.partial(StepLR, step_size=1, gamma=0.5)
    train(tmp_path, crash=12, scheduler=schedule)
    trainer, _ = train(tmp_path, scheduler=schedule)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.01 * 0.5**3


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (functools.partial(StepLR, step_size=2, gamma=0.5), "step_size of the schedule was 1 and is 2"),
        (functools.partial(CosineAnnealingLR, T_max=3), r"the schedule was \S+StepLR and is \S+CosineAnnealingLR"),
        (None, r"the schedule was \S+StepLR and is None"),
    ],
)
def test_another_schedule_is_refused_by_name(schedule, message, tmp_path):
    train(tmp_path, crash=5, scheduler=functools.partial(StepLR, step_size=1, gamma=0.5))
    with pytest.raises(UsageError, match=message):
        train(tmp_path, scheduler=schedule)


def test_a_schedule_of_ones_own_may_have_no_state():
    class Halves:
        def __init__(self, optimizer) -> None:
            self.optimizer = optimizer

        def step(self) -> None:
            self.optimizer.param_groups[0]["lr"] /= 2

    trainer = Trainer(2, progress=False)
    trainer.fit(network(), housing(), loss=nn.MSELoss(), optimizer=adam(), scheduler=Halves)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.01 / 4


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ((True, 16, "tensors"), (True, 32, "tensors"), "batch_size was 16 and is 32"),
        ((True, 16, "tensors"), (False, 16, "tensors"), "shuffle was True and is False"),
        ((True, 16, "loader"), (True, 8, "loader"), "batch_size was 16 and is 8"),
        ((True, 16, "loader"), (False, 16, "loader"), r"the order of the data was \S+RandomSampler and is \S+Seq"),
        ((False, 16, "list"), (False, 32, "list"), "the length of the data was 7 and is 4"),
        ((True, 16, "loader"), (True, 16, "tensors"), r"the data was \S+DataLoader and is \S+Tensors"),
    ],
)  # fmt: skip
def test_other_batches_are_refused_by_name(then, now, message, tmp_path):
    train(tmp_path, data=numbered(*then), crash=5)
    with pytest.raises(UsageError, match=message):
        train(tmp_path, data=numbered(*now))


@pytest.mark.parametrize("kind", ["tensors", "loader", "list"])
@pytest.mark.parametrize(("before", "after"), [(16, 12), (12, 16), (16, 48)])
def test_with_another_batch_size_it_goes_on_by_rows(kind, before, after, tmp_path):
    """After four steps of the first epoch each row that is left is trained on once."""
    shuffle = kind != "list"
    _, first = train(tmp_path, data=numbered(shuffle, before, kind), crash=5)
    trainer, rest = train(tmp_path, data=numbered(shuffle, after, kind), max_epochs=1, allow_changes=True)
    assert sorted(first[: 4 * before] + rest) == list(range(ROWS))
    left, whole = ROWS - 4 * before, ROWS
    assert trainer.step == 4 + -(-left // after) if kind == "tensors" else 4 + -(-whole // after) - 4 * before // after


def test_a_batch_that_cannot_be_cut_is_refused():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    with pytest.raises(UsageError, match=r"in the middle of a batch.* holds packed sequences"):
        rest_of([{"x": packed}, torch.ones(2)], 1, 2)
    with pytest.raises(UsageError, match=r"this batch of 2 rows holds a tensor of shape \(7, 2\)"):
        rest_of((torch.ones(2), torch.ones(7, 2)), 1, 2)
    batch = {"x": torch.arange(4), "name": list("abcd"), "scale": torch.tensor(2.0)}
    cut = rest_of(batch, 3, 4)
    assert (cut["x"].tolist(), cut["name"], cut["scale"].item()) == ([3], ["d"], 2.0)


def test_asked_for_another_class_of_optimizer_trains_as_that_class(tmp_path):
    train(tmp_path, crash=5)
    decay = functools.partial(torch.optim.AdamW, lr=0.003, weight_decay=0.5)
    trainer, _ = train(tmp_path, decay, allow_changes=True)
    (group,) = trainer.optimizer.param_groups
    assert (type(trainer.optimizer), group["lr"], group["weight_decay"]) == (torch.optim.AdamW, 0.003, 0.5)
    (steps,) = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert (trainer.step, steps) == (21, 17)  # it began without the state of another class


def test_asked_for_another_learning_rate_keeps_the_optimizers_state(tmp_path):
    schedule = functools.partial(StepLR, step_size=1, gamma=0.5)
    train(tmp_path, crash=12, scheduler=schedule)
    trainer, _ = train(tmp_path, adam(lr=0.08), scheduler=schedule, allow_changes=True)
    (steps,) = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert (trainer.step, steps) == (21, 21)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.08 * 0.5**2  # two ends of epochs since


def test_what_was_asked_for_is_what_the_next_resume_is_held_to(tmp_path):
    train(tmp_path, crash=5)
    train(tmp_path, adam(lr=0.5), crash=9, allow_changes=True)
    with pytest.raises(UsageError, match=r"lr was 0.5 and is 0.01"):
        train(tmp_path)
    assert train(tmp_path, adam(lr=0.5))[0].step == 21


def test_a_checkpoint_that_does_not_tell_is_gone_on_from(tmp_path, monkeypatch):
    """As those of the first versions."""
    state_of = Loop.state
    with monkeypatch.context() as earlier:
        known = lambda loop, ended: {key: x for key, x in state_of(loop, ended).items() if key != "recipe"}  # noqa: E731
        earlier.setattr(Loop, "state", known)
        train(tmp_path, crash=5)
    assert "recipe" not in newest(tmp_path)
    trainer, rows = train(tmp_path, data=numbered(True, 12, "tensors"), max_epochs=1)
    assert (trainer.step, len(rows)) == (4 + 4, ROWS - 4 * 16)


def test_more_epochs_and_the_same_arguments_are_no_change(tmp_path):
    train(tmp_path, max_epochs=1)
    with warnings.catch_warnings(action="error"):
        assert train(tmp_path, max_epochs=2, allow_changes=True)[0].step == 14
        assert train(tmp_path, max_epochs=3)[0].step == 21


@pytest.mark.parametrize(
    ("batch_size", "processes", "said"),
    [
        (16, 3, []),
        (24, 2, []),
        (48, 1, []),
        (24, 3, ["batch_size was 16 and is 24"]),
        (32, 2, ["batch_size was 16 and is 32"]),
    ],
)
def test_another_number_of_processes_keeps_the_rows_of_each_or_of_all(batch_size, processes, said):
    """After batches of 16 rows in each of three processes."""
    then, now = (
        {"optimizer": {"class": "Adam", "groups": []}, "schedule": {"class": None}, "data": {"batch_size": size}}
        for size in (16, batch_size)
    )
    assert [str(change) for change in changes(then, now, 3, processes)] == said


@pytest.mark.parametrize(
    ("accumulate", "processes", "refused"), [(2, 2, False), (4, 1, False), (1, 4, False), (4, 2, True)]
)
def test_an_update_may_be_of_as_many_batches_of_fewer_processes(accumulate, processes, refused):
    """After updates of two batches in each of two processes."""
    then, now = (
        {"optimizer": {"class": "Adam", "groups": []}, "schedule": {"class": None}, "data": {}, "training": training}
        for training in ({"accumulate": 2}, {"accumulate": accumulate})
    )
    assert bool(changes(then, now, 2, processes)) == refused
