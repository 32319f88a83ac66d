"""The edges of a training, where the Trainer has to equal a loop written by hand."""

from __future__ import annotations

import functools
import gc
import json
import warnings

import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import launch

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import Callback, Checkpoints, EarlyStopping, Metrics, Module, Trainer, read_checkpoint
from windtunnel.train.checkpoint import folders
from windtunnel.train.metrics import state_of_rank
from windtunnel.train.prefetch import Prefetcher

SGD = functools.partial(torch.optim.SGD, lr=0.05)
STILL = functools.partial(torch.optim.SGD, lr=0.0)
X = torch.arange(12.0).view(12, 1) / 12
Y = 2 * X


def loader(batch_size: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(X, Y), batch_size)


def trained(model, data=None, epochs=1, loss=None, optimizer=SGD, callbacks=(), fit=None, **options) -> Trainer:
    trainer = Trainer(epochs, progress=False, callbacks=callbacks, **options)
    trainer.fit(
        model, loader() if data is None else data, loss=loss or nn.MSELoss(), optimizer=optimizer, **(fit or {})
    )
    return trainer


class Weighted(nn.Module):
    """A loss with a parameter of its own, and a buffer that counts its calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs, target):
        self.calls += self.training
        return (torch.exp(-self.weight) * (outputs - target) ** 2).mean() + self.weight


class AtEpoch(Callback):
    def __init__(self, epoch: int, function) -> None:
        self.epoch, self.function = epoch, function

    def on_epoch_end(self, trainer, metrics):
        if trainer.epoch == self.epoch:
            self.function(trainer)


@pytest.mark.parametrize("clip", [0, 0.1])
def test_a_group_added_while_it_trains_is_zeroed_and_clipped(clip):
    def network():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        model[0].requires_grad_(False)
        return model, torch.optim.SGD(model[2].parameters(), lr=0.05)

    def unfreeze(model, optimizer):
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters())})

    model, optimizer = network()
    callback = AtEpoch(1, lambda trainer: unfreeze(trainer.model, trainer.optimizer))
    trained(model, epochs=4, optimizer=optimizer, callbacks=[callback], gradient_clip_val=clip)
    expected, optimizer = network()
    for epoch in range(4):
        for inputs, target in loader():
            optimizer.zero_grad()
            nn.functional.mse_loss(expected(inputs), target).backward()
            if clip:
                nn.utils.clip_grad_norm_(expected.parameters(), clip)
            optimizer.step()
        if epoch == 0:
            unfreeze(expected, optimizer)
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


def test_a_callback_may_exchange_the_optimizer_and_the_clipping():
    def exchange(trainer):
        trainer.optimizer = STILL(trainer.model.parameters())

    model = nn.Linear(1, 1)
    seen = []
    trained(model, epochs=3, callbacks=[AtEpoch(1, exchange), AtEpoch(1, lambda t: seen.append(t.model.weight.item()))])
    assert seen == [model.weight.item()]


def test_a_loss_with_parameters_trains_and_is_resumed(tmp_path):
    def run(epochs, folder=False, resume=False):
        torch.manual_seed(0)
        loss, model = Weighted(), nn.Linear(1, 1)
        trained(model, epochs=epochs, loss=loss, checkpoint=folder, seed=1, fit={"resume": resume})
        return loss, model

    expected, model = run(4)
    assert expected.weight.item() != 1.0
    assert expected.calls.item() == 12
    run(2, tmp_path)
    resumed, again = run(4, tmp_path, True)
    assert torch.equal(resumed.weight, expected.weight)
    assert resumed.calls.item() == 12
    assert torch.equal(again.weight, model.weight)
    with pytest.raises(UsageError, match="the loss was"):
        trained(nn.Linear(1, 1), epochs=9, checkpoint=tmp_path, fit={"resume": True})
    with pytest.raises(UsageError, match="loss is of a different model"):
        trained(nn.Linear(1, 1), epochs=9, checkpoint=tmp_path, fit={"resume": True, "allow_changes": True})


def test_a_loss_is_in_eval_mode_while_it_validates():
    loss = Weighted()
    trained(nn.Linear(1, 1), epochs=2, loss=loss, fit={"val_loader": loader()})
    assert loss.calls.item() == 6
    assert loss.training


def test_plain_tensors_that_train_are_resumed(tmp_path):
    class Scratch(Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.zeros(1, 1, requires_grad=True)

        def forward(self, inputs):
            return inputs @ self.weight

        def loss(self, outputs, target):
            return ((outputs - target) ** 2).mean()

        def configure_optimizers(self):
            return SGD([self.weight])

        def scratch_parameters(self):
            return [self.weight]

    def run(epochs, folder=False, resume=False):
        model = Scratch()
        Trainer(epochs, progress=False, checkpoint=folder).fit(model, loader(), resume=resume)
        return model.weight.item()

    expected = run(4)
    run(2, tmp_path)
    assert run(4, tmp_path, True) == expected


def test_extras_are_what_they_were_in_their_step():
    class Own(Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 1), []

        def training_step(self, batch):
            self.seen.append(self.layer.weight.item())
            return {"loss": ((self.layer(batch[0]) - batch[1]) ** 2).mean(), "weight": self.layer.weight[0, 0]}

    model = Own()
    trainer = Trainer(1, progress=False)
    history = trainer.fit(model, loader(), optimizer=SGD)
    assert history[0]["train_weight"] == pytest.approx(sum(model.seen) / 3)


def test_metrics_keep_values_that_change_and_large_integers():
    metrics = Metrics()
    value = torch.zeros(())
    for number in range(3):
        metrics.add("mean", value.fill_(number))
    metrics.add("count", torch.tensor(2**24 + 1))
    assert metrics.compute() == {"mean": 1.0, "count": 2**24 + 1}


class Kept:
    """A metric that is no torchmetrics object."""

    def __init__(self) -> None:
        self.reset()

    def reset(self):
        self.values = []

    def update(self, outputs, target):
        self.values.append(target.flatten())

    def compute(self):
        return torch.cat(self.values).mean()


def test_metric_objects_go_on_in_the_middle_of_an_epoch(tmp_path):
    def metrics():
        both = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])
        return {"kept": Kept(), "errors": both, "mean": torchmetrics.MeanAbsoluteError()}

    def run(resume=False, callbacks=()):
        torch.manual_seed(0)
        checkpoint = Checkpoints(tmp_path / str(bool(callbacks or resume)), every_steps=2)
        fit = {"metrics": metrics(), "resume": resume}
        return trained(nn.Linear(1, 1), checkpoint=checkpoint, callbacks=callbacks, fit=fit).history

    class Crash(Callback):
        def on_step_end(self, trainer):
            if trainer.step == 3:
                raise RuntimeError("crash")

    expected = run()
    with pytest.raises(RuntimeError, match="crash"):
        run(callbacks=[Crash()])
    assert run(resume=True) == expected
    assert {"train_kept", "train_errors_MeanSquaredError", "train_mean"} <= set(expected[0])


def test_a_metric_that_cannot_be_kept_is_refused_when_it_is_resumed():
    class Odd(Kept):
        def reset(self):
            self.values = []
            self.function = lambda: 0

    metrics = Metrics({"odd": Odd()})
    state = metrics.state_dict()
    with pytest.raises(UsageError, match="lacks what the metric 'odd' had counted"):
        metrics.load_state_dict(state)


def test_counts_of_torchmetrics_are_not_guessed_for_other_numbers_of_processes():
    state = Metrics({"error": torchmetrics.MeanAbsoluteError()}).state_dict()
    with pytest.raises(UsageError, match="of 2 processes cannot go on in 3"):
        state_of_rank([state, state], 0, 3)


def test_lazy_layers_lose_no_batch_and_count_none_twice():
    seen = []

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d(), nn.Linear(2, 1))

        def forward(self, inputs):
            if self.training:
                seen.extend(inputs.flatten().tolist())
            return self.layers(inputs.mul_(1))

    model = Watch()
    trained(model, ((X[i : i + 4].clone(), Y[i : i + 4]) for i in (0, 4, 8)))
    assert seen == X.flatten().tolist()
    assert int(model.layers[1].num_batches_tracked) == 3


def test_lazy_layers_are_resumed_without_a_look_at_the_data(tmp_path):
    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 1))

    expected = network()
    trained(expected, epochs=2)
    trained(network(), checkpoint=tmp_path)
    model = network()
    trained(model, epochs=2, checkpoint=tmp_path, fit={"resume": True})
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_lazy_layers_are_resumed_on_several_gpus(session, tmp_path):
    def run(epochs, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 1))
        trained(model, epochs=epochs, num_gpus=2, **options)
        return model.state_dict()

    expected = run(2)
    run(1, checkpoint=tmp_path)
    found = run(2, checkpoint=tmp_path, fit={"resume": True})
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_training_that_fails_lets_go_of_its_loader(session):
    """Else the workers of a divided loader stay until the trainer is collected, which waits 5 s for each of them."""

    def fail(trainer):
        raise ValueError

    trainer = Trainer(1, 1, progress=False, callbacks=[AtEpoch(1, fail)])
    with pytest.raises(ValueError):
        trainer.fit(nn.Linear(1, 1), loader(), loss=nn.MSELoss(), optimizer=SGD)
    assert not any(type(one) is Prefetcher for one in gc.get_objects())


def test_a_training_resumed_after_an_epochs_last_step_has_trained(tmp_path):
    """PyTorch warns of a schedule that is stepped before its optimizer, which it is in this process only."""

    def run(resume):
        model = nn.Linear(1, 1)
        checkpoints = Checkpoints(tmp_path, every_steps=1, every_epochs=None, keep=9, asynchronous=False)
        schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1)
        trainer = trained(model, epochs=2, checkpoint=checkpoints, fit={"scheduler": schedule, "resume": resume})
        return model.state_dict(), trainer.scheduler.state_dict()

    expected = run(False)
    with warnings.catch_warnings(action="error"):
        assert run(folders(tmp_path)[2]) == expected


def test_accumulation_trains_on_a_batch_before_it_reads_the_next():
    class Reused:
        """Batches that lie in the same memory."""

        def __iter__(self):
            inputs, target = torch.empty(4, 1), torch.empty(4, 1)
            for begin in (0, 4, 8):
                inputs.copy_(X[begin : begin + 4])
                target.copy_(Y[begin : begin + 4])
                yield inputs, target

    def run(data):
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        trained(model, data, accumulate=2)
        return model.state_dict()

    torch.testing.assert_close(run(Reused()), run(loader()))


def test_a_group_that_the_epoch_ends_overflows_where_a_group_of_its_size_does():
    """One batch an epoch, in groups of three: its loss is not divided by three before it is scaled."""
    found = []
    for accumulate in (1, 3):
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        loss = _twice
        trainer = trained(model, loader(12), loss=loss, epochs=2, accumulate=accumulate, precision="fp16")
        found.append((model.weight.item(), len(trainer.optimizer.state)))
    assert found[0] == found[1]


def _twice(outputs, target):
    return 2 * ((outputs - target) ** 2).mean()


@pytest.mark.parametrize("where", ["before", "on_fit_start"])
def test_parts_in_eval_mode_stay_so(where):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    callback = Callback()
    if where == "before":
        model[1].eval()
    else:
        callback.on_fit_start = lambda trainer: model[1].eval()
    trained(model, callbacks=[callback])
    assert int(model[1].num_batches_tracked) == 0


def test_a_model_in_eval_mode_is_trained_in_training_mode():
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).eval()
    trained(model)
    assert int(model[1].num_batches_tracked) == 3


def test_a_callback_may_have_its_hooks_as_attributes():
    steps = []
    callback = Callback()
    callback.on_step_end = lambda trainer: steps.append(trainer.step)
    trained(nn.Linear(1, 1), callbacks=[callback])
    assert steps == [1, 2, 3]


def test_early_stopping_begins_anew_with_each_training():
    stopping = EarlyStopping("train_loss", patience=2)
    epochs = [len(trained(nn.Linear(1, 1), epochs=8, optimizer=STILL, callbacks=[stopping]).history) for _ in range(2)]
    assert epochs == [3, 3]


def test_a_training_that_was_stopped_goes_on(tmp_path):
    class Stop(Callback):
        def on_epoch_end(self, trainer, metrics):
            trainer.stop("enough")

    trained(nn.Linear(1, 1), epochs=5, callbacks=[Stop()], checkpoint=tmp_path)
    resumed = trained(nn.Linear(1, 1), epochs=5, checkpoint=tmp_path, fit={"resume": True})
    assert len(resumed.history) == 5
    assert resumed.stop_reason is None


def test_early_stopping_stays_stopped_until_it_is_given_patience(tmp_path):
    def run(patience, resume):
        stopping = EarlyStopping("train_loss", patience=patience)
        fit = {"resume": resume}
        trainer = trained(
            nn.Linear(1, 1), epochs=6, optimizer=STILL, callbacks=[stopping], checkpoint=tmp_path, fit=fit
        )
        return len(trainer.history)

    assert run(2, False) == 3
    assert run(2, True) == 3
    assert run(9, True) == 6
    assert "stop_reason" not in read_checkpoint(folders(tmp_path)[-1])


def test_sparse_gradients_are_trained_by_an_optimizer_that_takes_them():
    def network():
        torch.manual_seed(0)
        return nn.Embedding(5, 2, sparse=True)

    data = [(torch.tensor([1, 2]), torch.zeros(2, 2)), (torch.tensor([1, 3]), torch.zeros(2, 2))]
    model, expected = network(), network()
    trained(model, data)
    optimizer = SGD(expected.parameters())
    for inputs, target in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(expected(inputs), target).backward()
        optimizer.step()
    torch.testing.assert_close(model.weight, expected.weight)


def test_timers_may_be_nested():
    timer = wt.timer("cpu")
    with timer, timer:
        pass
    inner, outer = timer.timing.times_s
    assert outer >= inner


def test_a_policy_may_be_used_again():
    policy = wt.policy("error")
    modes = []
    for _ in range(2):
        with policy:
            modes.append(wt.Policy.mode)
            with policy:
                modes.append(wt.Policy.mode)
    assert modes == ["error"] * 4
    assert wt.Policy.mode == "silent"


def test_copies_obey_the_policy(session):
    with wt.policy("error"), pytest.raises(UsageError, match=r"wt\.copy copies 4 bytes from cpu to cuda:0"):
        wt.copy(torch.ones(1), wt.gpu(0))
    wt.copy(torch.ones(1, device="cuda"), wt.gpu(0))


@pytest.mark.long
def test_processes_agree_with_one(tmp_path):
    """Losses with parameters, plain tensors, metric objects; shards with tied weights, numbers, buffers, clipping."""
    result = launch(2, tmp_path, program="process_cases.py")
    assert result["cases"] >= 7
    assert result["wrong"] == [{}, {}], json.dumps(result["wrong"])
