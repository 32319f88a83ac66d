"""One device: what a bare loop would compute, told in fewer lines."""

from __future__ import annotations

import copy
import functools
import weakref
from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training import ADAM, housing, network, weights

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import Callback, EarlyStopping, Module, Tensors, Trainer, add_to_class, seed_all


def bare_loop(model: nn.Module, batches, epochs: int, clip: float = 0) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for inputs, target in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), target).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def trained(data=None, epochs: int = 3, model: nn.Module | None = None, fit: dict | None = None, **options) -> Trainer:
    trainer = Trainer(epochs, progress=False, **options)
    model = network() if model is None else model
    inputs, target = housing()
    data = DataLoader(TensorDataset(inputs, target), 32) if data is None else data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer.fit(model, data, **{"loss": nn.MSELoss(), "optimizer": optimizer} | (fit or {}))
    return trainer


@pytest.mark.parametrize("clip", [0, 0.1])
def test_trains_as_a_bare_loop_does(clip):  # mission 62
    loader = DataLoader(TensorDataset(*housing()), 32)
    expected = network()
    bare_loop(expected, loader, epochs=3, clip=clip)
    trainer = trained(loader, gradient_clip_val=clip)
    assert torch.equal(weights(trainer.model), weights(expected))


def test_shuffled_loader_gives_the_batches_of_a_bare_loop():
    expected, model = network(), network()
    loader = DataLoader(TensorDataset(*housing()), 32, shuffle=True)
    seed_all(5)
    torch.randint(2**62, ())  # the Trainer draws the seed of its own shuffles
    bare_loop(expected, loader, epochs=2)
    trained(loader, epochs=2, model=model, seed=5)
    assert torch.equal(weights(model), weights(expected))


@pytest.mark.parametrize("rows", [404, 101, 20, 1])
def test_tensors_are_shuffled_anew_and_each_row_is_used_once(rows):  # mission 114
    seen = []

    class Watch(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch):
            seen.append(batch[0].flatten().tolist())
            return self.layer(batch[0]).mean()

    model = Watch()
    numbers = torch.arange(float(rows)).reshape(-1, 1)
    Trainer(2, progress=False).fit(model, (numbers,), optimizer=torch.optim.SGD, batch_size=128)
    sizes = [len(batch) for batch in seen]
    assert sizes == ([128] * (rows // 128) + ([rows % 128] if rows % 128 else [])) * 2
    first, second = (list(chain(*half)) for half in (seen[: len(seen) // 2], seen[len(seen) // 2 :]))
    assert sorted(first) == sorted(second) == numbers.flatten().tolist()
    assert rows == 1 or first != second


def test_accumulated_batches_are_one_large_batch():
    expected = network()
    bare_loop(expected, DataLoader(TensorDataset(*housing()), 60), epochs=3)
    trainer = trained(DataLoader(TensorDataset(*housing()), 20), accumulate=3)
    assert trainer.step == 6
    torch.testing.assert_close(weights(trainer.model), weights(expected))


def test_means_are_over_samples_not_batches():
    def absolute(outputs, target):
        return (outputs - target).abs().mean()

    inputs, target = housing(33)
    model = network()
    result = Trainer(1).evaluate(model, (inputs, target), loss=nn.MSELoss(), metrics={"mae": absolute}, batch_size=32)
    assert result["loss"] == pytest.approx(nn.functional.mse_loss(model(inputs), target).item(), rel=1e-6)
    assert result["mae"] == pytest.approx(absolute(model(inputs), target).item(), rel=1e-6)


def test_history_has_losses_and_metrics_of_both_sets():
    trainer = trained(fit={"val_loader": housing(), "metrics": {"largest": lambda outputs, target: outputs.max()}})
    assert [entry["epoch"] for entry in trainer.history] == [0, 1, 2]
    assert set(trainer.history[0]) == {"epoch", "train_loss", "train_largest", "val_loss", "val_largest"}
    assert trainer.history[2]["train_loss"] < trainer.history[0]["train_loss"]


def test_module_with_steps_of_its_own():
    class Scaled(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(13, 1)

        def training_step(self, batch):
            error = self.layer(batch["inputs"]) - batch["target"]
            return {"loss": (error**2).mean(), "worst": error.abs().max()}

        def validation_step(self, batch):
            return (self.layer(batch["inputs"]) - batch["target"]).abs().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    inputs, target = housing()
    data = {"inputs": inputs, "target": target}
    trainer = Trainer(3, progress=False)
    history = trainer.fit(Scaled(), data, data)
    assert set(history[0]) == {"epoch", "train_loss", "train_worst", "val_loss"}
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


@pytest.mark.parametrize(("every", "rate"), [("epoch", 0.01 * 0.5**2), ("step", 0.01 * 0.5**8)])
def test_schedules_step_by_epoch_or_by_update(every, rate):
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    trainer = trained(epochs=2, fit={"scheduler": schedule, "schedule_every": every})
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_plateau_schedule_watches_the_validation_loss():
    schedule = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=10)
    trainer = trained(epochs=3, fit={"scheduler": schedule, "val_loader": housing()})
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.5**3)


# mission 51
def test_lazy_layers_get_their_shapes_before_the_optimizer():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    Trainer(1, progress=False).fit(model, housing(), loss=nn.MSELoss(), optimizer=ADAM)
    assert model[0].weight.shape == (4, 13)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_precisions_train(precision):  # mission 127
    before = torch.get_float32_matmul_precision()
    trainer = trained(epochs=4, precision=precision)
    assert trainer.history[-1]["train_loss"] < trainer.history[0]["train_loss"]
    assert torch.get_float32_matmul_precision() == before
    assert weights(trainer.model).dtype == torch.float32


def test_bf16_computes_in_bfloat16():
    seen = []

    class Watch(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            seen.append(outputs.dtype)
            return outputs

    trained(model=Watch(13, 1), epochs=1, precision="bf16")
    assert set(seen) == {torch.bfloat16}


# mission 118
def test_optimizer_maker_is_fused_and_agrees_with_the_plain_one():
    fused = trained((*housing(),), fit={"optimizer": ADAM})
    plain = trained((*housing(),))
    assert fused.optimizer.param_groups[0]["fused"] is True
    assert not plain.optimizer.param_groups[0]["fused"]
    assert fused.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"], rel=0.2)


def test_seed_makes_two_trainings_equal():
    results = [weights(trained(Tensors(*housing()), model=network(0.3), seed=7).model) for _ in range(2)]
    other = weights(trained(Tensors(*housing()), model=network(0.3), seed=8).model)
    assert torch.equal(*results)
    assert not torch.equal(results[0], other)


def test_deterministic_holds_during_fit_only():
    seen = []

    class Watch(Callback):
        def on_step_end(self, trainer):
            seen.append(torch.are_deterministic_algorithms_enabled())

    trained(epochs=1, deterministic=True, callbacks=[Watch()])
    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_early_stopping_ends_and_says_why():
    stopping = EarlyStopping("train_loss", patience=2, mode="max")
    trainer = trained(epochs=50, callbacks=[stopping])
    assert len(trainer.history) == 3
    assert trainer.stop_reason.startswith("train_loss has not improved for 2 epochs (best ")


def test_callback_may_stop_after_a_step():
    class Stop(Callback):
        def on_step_end(self, trainer):
            if trainer.step == 5:
                trainer.stop("enough")

    trainer = trained(epochs=9, callbacks=[Stop()])
    assert (trainer.step, len(trainer.history), trainer.stop_reason) == (5, 2, "enough")


def test_parts_in_eval_mode_stay_so_after_validation():
    model = network(0.5)
    seen = []

    class Freeze(Callback):
        def on_fit_start(self, trainer):
            model[2].eval()

        def on_epoch_end(self, trainer, metrics):
            seen.append((model.training, model[0].training, model[2].training))

    class Late(Callback):
        def on_step_end(self, trainer):
            model[2].eval()

    trained(model=model, epochs=2, callbacks=[Freeze(), Late()], fit={"val_loader": housing()})
    assert seen == [(True, True, False)] * 2


def test_predict_keeps_the_order():
    inputs, _ = housing()
    model = network()
    outputs = Trainer(1).predict(model, inputs, batch_size=7)
    torch.testing.assert_close(torch.cat(outputs), model(inputs))
    assert len(outputs) == 15
    assert not outputs[0].requires_grad


def test_streams_of_batches_of_unknown_length():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(*housing(), strict=True)

    expected = network()
    bare_loop(expected, DataLoader(Stream(), 32), epochs=2)
    trainer = trained(DataLoader(Stream(), 32), epochs=2)
    assert torch.equal(weights(trainer.model), weights(expected))


def test_data_loader_with_workers_gives_the_same():
    loaders = [DataLoader(TensorDataset(*housing()), 32, num_workers=workers) for workers in (0, 2)]
    results = [weights(trained(loader, epochs=1).model) for loader in loaders]
    assert torch.equal(*results)


# mission 56, 59
def test_a_fit_keeps_neither_its_loaders_nor_its_callers_variables():
    # where they wait for the garbage collector, workers that persist do not see the end: it waits 5 s for each
    def fit() -> list[weakref.ref]:
        data = list(zip(*housing(), strict=True))
        loaders = [DataLoader(data, 16, num_workers=1, persistent_workers=True) for _ in range(2)]
        variable = torch.ones(1)
        trainer = Trainer(2, progress=False)
        trainer.fit(network(), *loaders, loss=nn.MSELoss(), optimizer=ADAM)
        assert trainer.step == 2 * len(loaders[0])
        kept.append(trainer)
        return [weakref.ref(one) for one in (*loaders, variable)]

    kept: list[Trainer] = []
    fit()  # PyTorch's first optimizer imports its compiler, which keeps frames
    assert [one() for one in fit()] == [None, None, None]


def test_prepare_batch_may_be_replaced_by_add_to_class():
    original = Trainer.prepare_batch

    @add_to_class(Trainer)
    def prepare_batch(self, batch):
        return [2 * part for part in original(self, batch)]

    try:
        doubled = trained().history[0]["train_loss"]
    finally:
        Trainer.prepare_batch = original
    assert doubled == pytest.approx(4 * trained().history[0]["train_loss"], rel=0.2)


class Doubling(Trainer):
    def prepare_batch(self, batch):
        inputs, target = super().prepare_batch(batch)
        return inputs.float(), target.float()


def test_prepare_batch_of_a_subclass_reaches_every_kind_of_data():
    inputs, target = (tensor.double() for tensor in housing())
    for data in ((inputs, target), DataLoader(list(zip(inputs, target, strict=True)), 16)):
        trainer = Doubling(1, progress=False)
        trainer.fit(network(), data, (inputs, target), loss=nn.MSELoss(), optimizer=ADAM)
        assert trainer.history[0]["val_loss"] > 0


# mission 115, 121
def test_targets_without_their_last_dimension_warn_as_in_pytorch():
    inputs, target = housing()
    with pytest.warns(UserWarning, match="target size"):
        Trainer(1, progress=False).fit(network(), (inputs, target[:, 0]), loss=nn.MSELoss(), optimizer=ADAM)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Trainer(1, precision="fp8"), "precision 'fp8' is unknown"),
        (lambda: Trainer(1, strategy="tp"), "strategy 'tp' is unknown"),
        (lambda: Trainer(1, accumulate=0), "accumulate=0 is not valid"),
        (lambda: trained(fit={"loss": None}), "has no loss: give fit a loss="),
        (lambda: trained(fit={"optimizer": None}), "fit has no optimizer"),
        (
            lambda: trained(fit={"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())}),
            "no parameter of the model",
        ),
        (lambda: trained([torch.ones(3, 13)]), "a batch is \\(inputs..., target\\)"),
        (lambda: trained(7), "batches cannot come from a int"),
        (lambda: trained((torch.ones(3, 13), torch.ones(4, 1))), "equal lengths"),
        (lambda: trained(fit={"resume": True}), "no folder to look in"),
        (lambda: trained(strategy="ddp"), "start it with `torchrun"),
        (lambda: trained(callbacks=[EarlyStopping("val_loss")]), "early stopping watches 'val_loss'"),
    ],
)
def test_what_does_not_fit_together_is_said(call, text):
    with pytest.raises(UsageError, match=text):
        call()


def test_model_is_not_changed_by_prepare_where_it_has_no_board():
    model = network()
    before = set(vars(model))
    trained(model=model)
    assert set(vars(model)) == before
    assert wt.device_of(copy.deepcopy(model)) == wt.cpu()
