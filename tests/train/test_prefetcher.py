"""Batches on a GPU one ahead, without anything that a check could find."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.trace.operation import Kind
from windtunnel.train import Prefetcher

Pair = collections.namedtuple("Pair", "inputs target")


def batches(count: int = 6, rows: int = 8):
    for i in range(count):
        yield Pair(torch.full((rows + i, 3), float(i)), {"label": torch.full((rows + i,), i), "name": f"batch {i}"})


def test_on_the_cpu_batches_are_the_loaders_own():
    given = list(batches())
    assert all(new is old for new, old in zip(Prefetcher(given, "cpu"), given, strict=True))


# mission 99, 100
def test_nested_batches_arrive_in_order_on_the_gpu(session):
    for i, batch in enumerate(Prefetcher(batches(), wt.gpu(0))):
        assert isinstance(batch, Pair)
        assert wt.device_of(batch) == wt.gpu(0)
        assert batch.target["name"] == f"batch {i}"
        assert batch.inputs.shape == (8 + i, 3)
        assert batch.inputs.cpu().eq(i).all()
        assert batch.target["label"].cpu().eq(i).all()


@pytest.mark.parametrize("pin_memory", [False, True])
def test_no_check_finds_anything(session, pin_memory):  # mission 101
    data = TensorDataset(torch.randn(1024, 256), torch.randint(10, (1024,)))
    weight = torch.randn(256, 2048, device="cuda")
    total = torch.zeros((), device="cuda")
    for inputs, _ in Prefetcher(DataLoader(data, 128, pin_memory=pin_memory), wt.gpu(0)):
        for _ in range(8):
            total += (inputs @ weight).square().mean()
    assert total.item() > 0
    assert [f for f in session.findings() if f.code not in ("launch-bound", "idle-gpu", "host-sync")] == []


# mission 42, 100
def test_copies_overlap_with_compute(session):
    data = [torch.randn(256, 1024) for _ in range(6)]
    weight = torch.randn(1024, 1024, device="cuda")
    begin = len(session.trace)
    for inputs in Prefetcher(data, wt.gpu(0)):
        for _ in range(12):
            inputs = inputs @ weight
    wt.synchronize()
    records = list(session.trace)[begin:]
    copies = [record for record in records if record.kind == Kind.COPY]
    kernels = [record for record in records if record.kind == Kind.KERNEL]
    overlapping = [c for c in copies if any(k.start_ns < c.end_ns and c.start_ns < k.end_ns for k in kernels)]
    assert len(copies) == 6
    assert len(overlapping) >= 4


def test_an_error_of_the_loader_passes_and_ends_it(session):
    closed = []

    def failing():
        try:
            yield torch.ones(3)
            yield torch.ones(3)
            raise OSError("disk")
        finally:
            closed.append(True)

    with pytest.raises(OSError, match="disk"):
        list(Prefetcher(failing(), wt.gpu(0)))
    assert closed == [True]


def test_the_batches_before_an_error_are_used(session):
    def failing():
        yield from (torch.tensor([float(i)]) for i in range(3))
        raise KeyError("row 3")

    batches = iter(Prefetcher(failing(), wt.gpu(0)))
    assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="row 3"):
        next(batches)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_loader_may_use_its_memory_again(session, pinned):
    def refilling():
        buffer = torch.empty(1000)
        buffer = buffer.pin_memory() if pinned else buffer
        for i in range(5):
            yield buffer.fill_(i)

    assert [batch.mean().item() for batch in Prefetcher(refilling(), wt.gpu(0))] == [0, 1, 2, 3, 4]


def test_leaving_early_closes_the_loader(session):
    closed = []

    def endless():
        try:
            while True:
                yield torch.ones(3)
        finally:
            closed.append(True)

    for batch in Prefetcher(endless(), wt.gpu(0)):
        assert batch.device == wt.gpu(0)
        break
    assert closed == [True]


def test_without_reading_ahead_the_loader_is_where_the_loop_is(session):
    taken = []

    def counting():
        for i in range(5):
            taken.append(i)
            yield torch.ones(1)

    prefetcher = Prefetcher(counting(), wt.gpu(0))
    prefetcher.ahead = False
    for used, _ in enumerate(prefetcher):
        assert len(taken) == used + 1


# mission 41
def test_the_policy_covers_its_copies(session):
    with wt.policy("error"), pytest.raises(UsageError, match="the Prefetcher copies 12 bytes from cpu to cuda:0"):
        next(iter(Prefetcher([torch.ones(3)], wt.gpu(0))))
    with wt.policy("warn"), pytest.warns(wt.DeviceCopyWarning, match="the Prefetcher copies 12 bytes"):
        next(iter(Prefetcher([torch.ones(3)], wt.gpu(0))))


def test_length_is_the_loaders():
    assert len(Prefetcher([1, 2, 3], "cpu")) == 3
    with pytest.raises(TypeError):
        len(Prefetcher(iter([1]), "cpu"))
