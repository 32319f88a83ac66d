"""DataLoader and host operators on the host's modelled clock."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from windtunnel import emulate
from windtunnel.trace.operation import Kind

MS = 1_000_000


class Slow(Dataset[torch.Tensor]):
    """Twenty-four items, of which each takes 10 ms."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.full((4,), float(index))


class Stream(IterableDataset[int]):
    """Eight numbers from each worker, of which each takes 10 ms."""

    def __iter__(self):
        for number in range(8):
            time.sleep(0.01)
            yield number


def epoch(step_s: float = 0.0, **options) -> tuple[list[list[float]], int, list[int]]:
    """(the batches' first columns, what the epoch took in ns, how long each `next` took)."""
    with emulate("V100") as session:
        begin = session.machine.host.now_ns
        seen = []
        for batch in DataLoader(Slow(), batch_size=4, **options):
            seen.append(batch[:, 0].tolist())
            time.sleep(step_s)
        rows = [row for row in session.trace if row.kind == Kind.HOST and row.signature.name == "DataLoader"]
        return seen, session.machine.host.now_ns - begin, [row.duration_ns for row in rows]


def test_the_main_process_spends_the_time_of_its_own_loading():
    seen, took, waits = epoch()
    assert [number for batch in seen for number in batch] == list(range(24))
    assert took >= 240 * MS
    assert all(40 * MS <= wait < 41 * MS for wait in waits[:6])


def test_workers_share_the_work_and_the_program_waits_for_the_rest():
    _, alone, _ = epoch()
    _, shared, waits = epoch(num_workers=2)
    assert 0.45 < shared / alone < 0.6
    assert waits[0] >= 40 * MS


def test_workers_that_are_fast_enough_hide_behind_the_steps():
    _, took, waits = epoch(step_s=0.1, num_workers=2)
    assert took < (6 * 100 + 45) * MS
    assert all(wait < MS for wait in waits[1:])


def test_the_wait_for_workers_is_the_same_in_each_run():
    assert epoch(0.003, num_workers=2) == epoch(0.003, num_workers=2)


def test_pinned_batches_wait_too():
    _, took, _ = epoch(num_workers=2, pin_memory=True)
    assert took >= 120 * MS


def test_an_iterable_dataset_of_several_workers_ends():
    with emulate("V100") as session:
        seen = [number for batch in DataLoader(Stream(), batch_size=4, num_workers=2) for number in batch.tolist()]
        assert sorted(seen) == sorted([*range(8), *range(8)])
        assert 80 * MS <= session.machine.host.now_ns < 90 * MS


def test_an_error_in_a_worker_is_the_worker_s_own():
    class Broken(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise KeyError(index)

    with emulate("V100"), pytest.raises(KeyError, match="worker process 0"):
        next(iter(DataLoader(Broken(), num_workers=1)))


def test_operators_on_host_tensors_take_the_host_time():
    with emulate("V100") as session:
        host = session.machine.host
        before = host.now_ns
        x = torch.ones(1 << 20)
        small = host.now_ns - before
        assert torch.equal(x @ x.view(-1, 1), torch.tensor([float(1 << 20)]))
        torch.randn(1 << 20)
        drawn = host.now_ns - before - small
        assert 0.1 * MS < small < drawn < 20 * MS


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_says_how_many_samples_it_has(workers: int):
    with emulate("V100") as session:
        loader = DataLoader(Slow(), batch_size=5, num_workers=workers, persistent_workers=workers > 0)
        next(iter(loader))  # an epoch that is left early
        list(loader)
    batches = [row.value for row in session.trace if row.kind == Kind.BATCH]
    assert batches == [5, 5, 5, 5, 5, 4]
