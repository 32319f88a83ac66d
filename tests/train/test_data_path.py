"""What a training sees of the data, and what it leaves of them."""

from __future__ import annotations

import collections
import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset, TensorDataset

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import Tensors, Trainer
from windtunnel.train.data import batch_size_of

STILL = functools.partial(torch.optim.SGD, lr=0.0)
X = torch.arange(12.0).view(12, 1)


class Seen(nn.Module):
    """Remembers the rows that it was given."""

    def __init__(self, in_place: bool = False):
        super().__init__()
        self.layer, self.in_place, self.rows = nn.Linear(1, 1), in_place, []

    def forward(self, x):
        self.rows.append(x.flatten().tolist())
        return self.layer(x.div_(10) if self.in_place else x)


def seen(source, epochs: int = 1, **options) -> list[list[float]]:
    model = Seen()
    Trainer(epochs, progress=False, **options).fit(model, source, loss=nn.MSELoss(), optimizer=STILL, batch_size=4)
    return model.rows


def test_predict_keeps_the_order_of_tensors_that_fit_shuffles():
    data = Tensors(X, batch_size=5)
    outputs = Trainer(1, progress=False).predict(nn.Identity(), data)
    assert [len(part) for part in outputs] == [5, 5, 2]
    assert torch.equal(torch.cat(outputs), X)


def test_a_subclass_of_a_tensor_dataset_is_asked_for_its_samples():
    class Sevens(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return torch.full_like(x, 7), y

    assert {row for batch in seen(Sevens(X, X)) for row in batch} == {7}


def test_any_data_set_with_a_length_is_cut_into_batches():
    rows = seen(Subset(TensorDataset(X, X), range(3, 9)))
    assert sorted(row for batch in rows for row in batch) == list(range(3, 9))


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_model_that_writes_into_its_batch_leaves_the_data_alone(session, gpus):
    x, y = X.clone(), X * 2
    trainer = Trainer(3, gpus, progress=False, graph=False)
    model = Seen(in_place=True)
    history = trainer.fit(model, Tensors(x, y, batch_size=4, shuffle=False), (x, y), loss=nn.MSELoss(), optimizer=STILL)
    assert torch.equal(x, X)
    assert len({row["val_loss"] for row in history}) == 1
    assert model.rows[0] == model.rows[4] == [0, 1, 2, 3]


def test_an_exhausted_generator_is_refused_and_trains_no_epoch_of_nothing():
    batches = ((X[i : i + 4], X[i : i + 4]) for i in (0, 4, 8))
    with pytest.raises(UsageError, match="this generator has no batch left: an iterator gives each batch once"):
        seen(batches, epochs=2)
    with pytest.raises(UsageError, match="has no batch left"):
        seen(iter([]))


def test_data_without_a_batch_are_refused():
    with pytest.raises(UsageError, match="gives no batch: there are no rows, or drop_last"):
        seen(DataLoader(TensorDataset(X, X), 16, drop_last=True))


def test_set_epoch_is_called_of_samplers_of_ones_own():
    class ByEpoch(Sampler):
        def __init__(self):
            self.told = []

        def set_epoch(self, epoch):
            self.told.append(epoch)

        def __len__(self):
            return 12

        def __iter__(self):
            return iter(range(12))

    sampler = ByEpoch()
    seen(DataLoader(TensorDataset(X, X), 4, sampler=sampler), epochs=3)
    assert sampler.told == [0, 1, 2]


def test_gathered_rows_may_be_counted_from_the_end_or_lie_on_a_gpu(session):
    backwards = DataLoader(TensorDataset(X, X), 4, sampler=[-1, -2, -3, 0])
    assert seen(backwards) == [[11, 10, 9, 0]]
    on_gpu = TensorDataset(X.to(wt.gpu(0)), X.to(wt.gpu(0)))
    assert seen(DataLoader(on_gpu, 12), num_gpus=1, graph=False) == [list(range(12))]


@dataclasses.dataclass
class Named:
    name: str
    x: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (pack_sequence([torch.ones(3, 1), torch.ones(2, 1)]), 2),
        ((pack_sequence([torch.ones(3, 1), torch.ones(2, 1)]), torch.ones(2)), 2),
        ({"names": ["a", "b", "c"], "x": torch.ones(3, 4)}, 3),
        (["name", torch.ones(5)], 5),
        (Named("n", torch.ones(4)), 4),
        (torch.ones(()), 1),
        ([{"x": torch.ones(2, 7)}], 2),
    ],
)
def test_the_rows_of_a_batch(batch, size):
    assert batch_size_of(batch) == size


@pytest.mark.parametrize("batch", [[], {}, "text", ["a", 1]])
def test_a_batch_without_tensors_is_refused(batch):
    with pytest.raises(UsageError, match="a batch without any tensor"):
        batch_size_of(batch)


Whole = collections.namedtuple("Whole", "x y")


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (
            [X, X, torch.ones(3)],
            r"cuts every tensor of a batch .* 12 rows holds one of shape \(3,\)",
        ),
        ([X, list(range(12)), X], "gives every replica the whole of a list, and this batch of 12 rows"),
        ([nn.utils.rnn.pack_sequence([X, X]), X], "DataParallel does not divide a PackedSequence"),
    ],
)
def test_what_data_parallel_would_cut_wrongly_is_refused(session, batch, sentence):
    trainer = Trainer(1, 2, strategy="dp", progress=False)
    with pytest.raises(UsageError, match=sentence):
        trainer.fit(Seen(), [batch], loss=nn.MSELoss(), optimizer=STILL)
    rows = DataLoader(TensorDataset(X), 3, sampler=DistributedSampler(range(12), 1, 0, shuffle=False))
    assert torch.equal(torch.cat(trainer.predict(nn.Identity(), rows)), X)


class Log:
    def __init__(self):
        self.steps = []

    def log(self, values, step):
        self.steps += [step] if "loss" in values else []

    def close(self): ...


def test_what_a_gpu_still_computes_at_the_end_of_an_epoch_is_logged(session):
    log = Log()
    trainer = Trainer(2, 1, progress=False, logger=[log], log_every=2)
    trainer.fit(nn.Linear(1, 1), Tensors(X, X, batch_size=2), loss=nn.MSELoss(), optimizer=STILL)
    assert log.steps == [2, 4, 6, 8, 10, 12]


def test_a_loss_whose_parameters_are_zero_is_resumed(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(()))

        def forward(self, outputs, target):
            return (torch.exp(-self.scale) * (outputs - target) ** 2).mean() + self.scale

    losses = [Scaled(), Scaled()]
    for loss, epochs in zip(losses, (1, 1), strict=True):
        optimizer = functools.partial(torch.optim.SGD, lr=1e-3)
        trainer = Trainer(epochs, progress=False, checkpoint=tmp_path, seed=0)
        trainer.fit(nn.Linear(1, 1), (X, X), loss=loss, optimizer=optimizer, resume=loss is losses[1])
    assert losses[1].scale.item() == losses[0].scale.item() != 0
