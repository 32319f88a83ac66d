"""Several processes divide data so that each row is seen once, or refuse: each process is played by a thread."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from windtunnel.errors import UsageError
from windtunnel.train import Tensors, Trainer
from windtunnel.train.feed import make_feed
from windtunnel.train.strategies import SingleDevice

ROWS = 23
X = torch.arange(float(ROWS)).view(ROWS, 1)
DATA = TensorDataset(X)


class Meeting:
    """Where the threads of a test exchange values; one at a time runs between two exchanges, and so its own draws."""

    def __init__(self, world: int) -> None:
        self.world, self.values = world, [None] * world
        self.turn, self.changed = 0, threading.Condition()
        self.states = [torch.manual_seed(rank).get_state() for rank in range(world)]
        self.broken = False

    def wait_for(self, rank: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn % self.world == rank or self.broken, timeout=20)
            torch.set_rng_state(self.states[rank])

    def pass_on(self, rank: int) -> None:
        with self.changed:
            self.states[rank] = torch.get_rng_state()
            self.turn += 1
            self.changed.notify_all()


class Member(SingleDevice):
    """One of several processes, as a thread."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__()
        self.rank, self.world_size, self.meeting = rank, meeting.world, meeting

    def gather(self, value):
        self.meeting.values[self.rank] = value
        self._round()
        values = list(self.meeting.values)
        self._round()
        return values

    def broadcast(self, value):
        return self.gather(value)[0]

    def _round(self) -> None:
        self.meeting.pass_on(self.rank)
        self.meeting.wait_for(self.rank)


def in_processes(world: int, work) -> list:
    """What `work(strategy)` returns in each of `world` processes, or the error of the first that fails."""
    meeting, results, errors = Meeting(world), [None] * world, []

    def run(rank: int) -> None:
        meeting.wait_for(rank)
        try:
            results[rank] = work(Member(rank, meeting))
        except UsageError as error:
            errors.append(error)
        meeting.pass_on(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    if errors:
        raise errors[0]
    return results


def epochs(make, world: int = 2, count: int = 1, **options) -> list[list[list[list[int]]]]:
    """The rows that count, by epoch, step and process."""

    def work(strategy):
        feed = make_feed(
            make(strategy.rank), strategy, 1, None, 4, options.get("shuffle", True), options.get("ordered", False)
        )
        return [[(rows(batch)[:size], total) for batch, size, total in feed.epoch(number)] for number in range(count)]

    ranks = in_processes(world, work)
    assert len({str([[total for _, total in epoch] for epoch in rank]) for rank in ranks}) == 1, "totals agree"
    return [
        [list(step) for step in zip(*([part for part, _ in rank[e]] for rank in ranks), strict=True)]
        for e in range(count)
    ]


def rows(batch) -> list[int]:
    return [int(value) for value in (batch if isinstance(batch, torch.Tensor) else batch[0]).flatten().tolist()]


def flat(epoch) -> list[int]:
    return [row for step in epoch for part in step for row in part]


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self) - 1, -1, -1))


class Odd(RandomSampler):
    def __iter__(self):
        return iter(range(1, ROWS, 2))

    def __len__(self):
        return ROWS // 2


class ShuffledBatches:
    def __iter__(self):
        order = torch.randperm(ROWS).tolist()
        return iter([order[:10], order[10:13], order[13:]])

    def __len__(self):
        return 3


class InBlocks(Dataset):
    """Gives whole batches."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index * 10 : index * 10 + 10]


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, 4),
        lambda: DataLoader(DATA, 4, shuffle=True),
        lambda: DataLoader(DATA, 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
        lambda: DataLoader(DATA, 4, sampler=Backwards(DATA)),
        lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler(range(ROWS))),
        lambda: DataLoader(DATA, batch_sampler=ShuffledBatches()),
        lambda: DataLoader(DATA, batch_sampler=OwnBatches(RandomSampler(DATA), 5, False)),
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(Backwards(DATA), 5, False)),
        lambda: DataLoader(InBlocks(), batch_size=None, shuffle=True),
        lambda: [(X[i : i + 5],) for i in range(0, ROWS, 5)],
        lambda: Tensors(X, batch_size=4),
        lambda: X,
        lambda: DATA,
    ],
)
def test_every_row_is_seen_once_in_an_epoch(make, world):
    first, second = epochs(lambda rank: make(), world, count=2)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(ROWS))


def test_num_samples_draws_from_all_rows():
    drawn = epochs(lambda rank: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=8)), count=6)
    assert {len(flat(epoch)) for epoch in drawn} == {8}
    assert all(max(Counter(flat(epoch)).values()) == 1 for epoch in drawn)
    assert max(row for epoch in drawn for row in flat(epoch)) > 8


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (lambda: Backwards(DATA), list(range(ROWS - 1, -1, -1))),
        (lambda: Odd(DATA), list(range(1, ROWS, 2))),
    ],
)
def test_subclasses_of_pytorchs_samplers_give_their_own_order(sampler, expected):
    (epoch,) = epochs(lambda rank: DataLoader(DATA, 4, sampler=sampler()))
    assert flat(epoch) == expected


def test_samples_drawn_with_replacement_are_drawn_once_for_all_processes():
    (epoch,) = epochs(lambda rank: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * ROWS, 16)))
    torch.set_rng_state(torch.manual_seed(0).get_state())
    assert flat(epoch) == list(WeightedRandomSampler([1.0] * ROWS, 16))


def test_batches_are_whole_and_taken_in_turn():
    """Lists and tensors of any length stay as they are; who has no batch left counts for nothing."""
    batches = [
        (X[:4], ["a"] * 4, torch.ones(4, 4)),
        (X[4:9], ["b"] * 5, torch.ones(4, 4)),
        (X[9:], ["c"] * 14, torch.ones(4, 4)),
    ]

    def work(strategy):
        return list(make_feed(batches, strategy, 1, None, 4, True).epoch(0))

    one, two = in_processes(2, work)
    assert [(item[1], item[2]) for item in one] == [(4, 9), (14, 14)]
    assert [(item[1], item[2]) for item in two] == [(5, 9), (0, 14)]
    assert [len(item[0][1]) for item in (*one, *two)] == [4, 14, 5, 14]
    assert all(item[0][2].shape == (4, 4) for item in (*one, *two))


def test_a_reader_may_fill_the_same_memory_anew():
    class Refilling:
        def __iter__(self):
            buffer = torch.empty(4, 1)
            for i in range(0, 20, 4):
                yield (buffer.copy_(X[i : i + 4]),)

    (epoch,) = epochs(lambda rank: Refilling(), 3)
    assert flat(epoch) == list(range(20))


def test_an_epoch_goes_on_where_it_was():
    """After one step the rest is the same as without a stop."""
    for make in (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(Backwards(DATA), 3, False)),
        lambda: [(x,) for x in X.split(3)],
    ):

        def work(strategy, make=make):
            whole = [rows(batch) for batch, _, _ in make_feed(make(), strategy, 1, None, 4, True).epoch(0)]
            rest = [rows(batch) for batch, _, _ in make_feed(make(), strategy, 1, None, 4, True).epoch(0, 6)]
            return whole[1:] == rest

        assert in_processes(2, work) == [True, True]


class MakesBatches(Dataset):
    def __init__(self, size: int) -> None:
        self.parts = X.split(size)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.parts[index]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)),
        lambda: [(x,) for x in X.split(4)],
        lambda: DataLoader(DATA, 4),
        lambda: Tensors(X, batch_size=4, shuffle=False),
        lambda: DataLoader(MakesBatches(3), batch_size=None),
    ],
)
def test_an_epoch_goes_on_by_rows_whatever_the_batches_are_now(make, world):
    """After six rows, from other batches among another number of processes."""

    def work(strategy):
        feed = make_feed(make(), strategy, 1, None, 4, True)
        return [(rows(batch)[:size], total) for batch, size, total in feed.epoch(0, 6)], feed.skipped

    done = in_processes(world, work)
    assert sorted(row for items, _ in done for part, _ in items for row in part) == list(range(6, ROWS))
    assert len({skipped for _, skipped in done}) == 1


def test_a_batch_that_the_data_set_makes_is_not_cut():
    def work(strategy):
        return make_feed(DataLoader(MakesBatches(4), batch_size=None), strategy, 1, None, 4, True).epoch(0, 6)

    with pytest.raises(UsageError, match="in the middle of a batch that the data set makes"):
        in_processes(2, work)


def test_every_process_is_told_that_a_folder_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("in the way")

    def work(strategy):
        trainer = Trainer(1, progress=False, strategy=strategy, checkpoint=tmp_path / "file")
        with pytest.raises(UsageError, match="checkpoints cannot be written to"):
            trainer.fit(torch.nn.Linear(1, 1), (X, X), loss=torch.nn.MSELoss(), optimizer=torch.optim.SGD)
        return True

    assert in_processes(2, work) == [True, True]


class ShufflingStream(IterableDataset):
    def __iter__(self):
        return iter(X[torch.randperm(ROWS)])


class DividedStream(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        return iter(X[self.rank :: 2])


class DividedSampler(Sampler):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 11

    def __iter__(self):
        return iter(range(self.rank, 22, 2))


class Endless(Sampler):
    def __iter__(self):
        return iter(int, 1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda rank: DataLoader(ShufflingStream(), 4), "were given different batches from this DataLoader"),
        (lambda rank: DataLoader(DividedStream(rank), 4), "were given different batches from this DataLoader"),
        (lambda rank: [(X[:3],)] * (rank + 1), "were given different batches from this list"),
        (lambda rank: X[rank * 10 : rank * 10 + 10], "were given different tensors"),
        (lambda rank: DataLoader(Subset(DATA, range(rank, 22, 2)), 4), "were given different data sets"),
        (lambda rank: DataLoader(TensorDataset(X + rank), 4), "were given different data sets"),
        (
            lambda rank: DataLoader(DATA, 4, sampler=DividedSampler(rank)),
            "this DividedSampler gives each process different",
        ),
        (lambda rank: DataLoader(DATA, 4, sampler=Endless()), "this Endless has no length"),
    ],
)
def test_what_cannot_be_divided_is_refused(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        epochs(make)


def test_the_outputs_of_a_distributed_sampler_are_in_order_or_refused():
    def make(shuffle):
        return lambda rank: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, rank, shuffle=shuffle))

    (epoch,) = epochs(make(False), ordered=True, shuffle=False)
    assert flat(epoch) == list(range(ROWS))
    with pytest.raises(UsageError, match="a DistributedSampler that shuffles"):
        epochs(make(True), ordered=True, shuffle=False)
    (epoch,) = epochs(make(True))
    assert set(flat(epoch)) == set(range(ROWS))


def batches_after(source: str, world: int, batch_size: int, wide: int, samples: int) -> list[list[tuple]]:
    """In each process: what it takes of epoch 1 after `samples` rows, with each batch's place within 64 bytes."""
    data = torch.arange(float(ROWS * wide)).view(ROWS, wide)
    make = {
        "shuffled tensors": lambda: Tensors(data, batch_size=batch_size),
        "tensors in order": lambda: Tensors(data, batch_size=batch_size, shuffle=False),
        "only whole batches": lambda: Tensors(data, batch_size=batch_size, drop_last=True),
        "loader": lambda: DataLoader(TensorDataset(data), batch_size, shuffle=True),
        "own batches": lambda: DataLoader(
            TensorDataset(data), batch_sampler=BatchSampler(Odd(data), batch_size, False)
        ),
        "one by one": lambda: DataLoader(data, batch_size=None, sampler=range(ROWS)),
        "list": lambda: [(data[i : i + batch_size].clone(),) for i in range(0, ROWS, batch_size)],
    }

    def work(strategy):
        feed = make_feed(make[source](), strategy, 1, None, 4, True, False)
        taken = []
        for batch, size, total in feed.epoch(1, samples):
            tensor = batch if isinstance(batch, torch.Tensor) else batch[0]
            taken.append((tensor.tolist(), size, total, tensor.data_ptr() % 64))
        return taken

    torch.manual_seed(7)
    return in_processes(world, work) if world > 1 else [work(SingleDevice())]


SOURCES = ("shuffled tensors", "tensors in order", "only whole batches", "loader", "own batches", "one by one", "list")


@pytest.mark.parametrize("gathered_rows", [4, 1 << 20])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_goes_on_after_any_of_its_steps_as_if_uninterrupted(source, world, gathered_rows, monkeypatch):
    dice = random.Random(f"{source} {world}")
    wide, batch_size = dice.choice((1, 3, 5)), dice.choice((1, 2, 4))
    monkeypatch.setattr("windtunnel.train.data.GATHERED_BYTES", gathered_rows * wide * 4)
    whole = batches_after(source, world, batch_size, wide, 0)
    totals = [total for _, _, total, _ in whole[0]]
    for steps in {0, 1, dice.randrange(len(totals)), len(totals) - 1, len(totals)}:
        rest = batches_after(source, world, batch_size, wide, sum(totals[:steps]))
        assert rest == [batches[steps:] for batches in whole]


@pytest.mark.parametrize("world", [1, 2])
def test_validation_data_that_give_no_batch_are_an_empty_epoch(world):
    taken = in_processes(
        world,
        lambda strategy: list(
            make_feed(Tensors(X, batch_size=24, drop_last=True), strategy, 1, None, 4, False, False).epoch(0)
        ),
    )
    assert taken == [[]] * world
