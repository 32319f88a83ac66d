"""Means that are gathered on the device and read rarely."""

from __future__ import annotations

import pytest
import torch

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.trace.operation import Kind
from windtunnel.train import Metrics
from windtunnel.train.metrics import state_of_rank


class Largest:
    """What torchmetrics objects look like."""

    def __init__(self):
        self.metric_state = {"value": torch.tensor(-1.0)}
        self.value = torch.tensor(-1.0)

    def reset(self):
        self.value = torch.tensor(-1.0)
        self.metric_state = {"value": self.value}

    def update(self, outputs, target):
        self.value = torch.maximum(self.value, outputs.max())
        self.metric_state = {"value": self.value}

    def compute(self):
        return self.value

    def to(self, device):
        self.value = self.value.to(device)
        return self


def test_weighted_means():
    metrics = Metrics(every=2)
    for value, weight in ((1.0, 128), (4.0, 128), (10.0, 20)):
        metrics.add("loss", torch.tensor(value), weight)
        metrics.add("rate", value)
    assert metrics.compute() == {"loss": pytest.approx((128 + 512 + 200) / 276), "rate": 5.0}


def test_nothing_added_gives_nothing():
    assert Metrics().compute() == {}


def test_weight_zero_counts_for_nothing():
    metrics = Metrics()
    metrics.add("loss", torch.tensor(float("nan")), 0)
    metrics.add("loss", torch.tensor(2.0), 3)
    assert metrics.compute() == {"loss": 2.0}


def test_values_of_different_kinds():
    metrics = Metrics()
    metrics.add("loss", torch.tensor([3.0], dtype=torch.float64))
    metrics.add("loss", torch.tensor(1.0, dtype=torch.bfloat16))
    metrics.add("loss", torch.tensor(2.0, requires_grad=True))
    assert metrics.compute() == {"loss": 2.0}


# mission 48, 131
def test_a_thousand_values_are_read_in_one_transfer(session):
    metrics = Metrics(every=1000)
    begin = len(session.trace)
    for i in range(1000):
        metrics.add("norm", torch.full((), float(i), device="cuda"))
    assert metrics.compute() == {"norm": 499.5}
    kinds = [record.kind for record in list(session.trace)[begin:]]
    assert kinds.count(Kind.COPY) == 1


def waits(session):
    return [(f.site, f.times, f.lost_ns) for f in session.findings() if f.code == "host-sync"]


# mission 49
def test_reading_never_waits(session):
    metrics = Metrics(every=1)
    metrics.add("norm", torch.ones((), device="cuda"))
    metrics.compute()  # the first pinned buffer takes its time
    metrics.reset()
    heavy = torch.randn(2048, 2048, device="cuda")
    before = waits(session)
    for _ in range(3):
        heavy = heavy @ heavy / 2048
        metrics.add("norm", heavy.norm())
    assert metrics.read() == {}
    assert waits(session) == before
    wt.synchronize()
    assert set(metrics.read()) == {"norm"}


def test_arrived_blocks_carry_their_tags():
    metrics = Metrics(every=100)
    metrics.add("loss", torch.tensor(1.0))
    metrics.flush(50)
    metrics.add("loss", torch.tensor(3.0))
    metrics.flush(100)
    assert metrics.arrived() == [(50, {"loss": 1.0}), (100, {"loss": 3.0})]
    assert metrics.arrived() == []


def test_a_look_in_between_leaves_a_block_whole():
    metrics, resumed = Metrics(every=100), Metrics(every=100)
    metrics.add("loss", torch.tensor(1.0))
    resumed.load_state_dict(metrics.state_dict())
    for one in (metrics, resumed):
        one.add("loss", torch.tensor(4.0), 2)
        one.flush(50)
        one.add("loss", torch.tensor(7.0))
        one.flush(100)
        assert one.arrived() == [(50, {"loss": 3.0}), (100, {"loss": 7.0})]
        assert one.compute() == {"loss": 4.0}


def test_values_of_two_kinds_are_one_line_of_a_log():
    metrics = Metrics(every=100)
    metrics.add("loss", torch.tensor(1.0))
    metrics.add("mae", torch.tensor(2.0, dtype=torch.float64))
    metrics.state_dict()
    metrics.add("loss", torch.tensor(3.0))
    metrics.flush(50)
    assert metrics.arrived() == [(50, {"loss": 2.0, "mae": 2.0})]


def test_functions_and_objects():
    metrics = Metrics({"mae": lambda outputs, target: (outputs - target).abs().mean(), "largest": Largest()})
    assert metrics.wants_outputs
    metrics.update(torch.tensor([1.0, 5.0]), torch.tensor([0.0, 0.0]), 2)
    metrics.update(torch.tensor([9.0]), torch.tensor([9.0]), 0)
    assert metrics.compute() == {"mae": 3.0, "largest": 5.0}
    metrics.reset()
    assert metrics.compute() == {"largest": -1.0}


def test_state_goes_on_where_it_was():
    metrics, other = Metrics({"largest": Largest()}), Metrics({"largest": Largest()})
    metrics.add("loss", torch.tensor(2.0), 3)
    metrics.update(torch.tensor([4.0]), torch.tensor([0.0]), 1)
    other.load_state_dict(metrics.state_dict())
    for one in (metrics, other):
        one.add("loss", torch.tensor(6.0), 1)
    assert other.compute() == metrics.compute() == {"loss": 3.0, "largest": 4.0}


def test_states_of_several_processes_merge():
    states = []
    for value, weight in ((1.0, 1), (4.0, 2)):
        metrics = Metrics()
        metrics.add("loss", torch.tensor(value), weight)
        states.append(metrics.state_dict())
    merged = Metrics()
    merged.load_state_dict(state_of_rank(states, 0, 1))
    assert merged.compute() == {"loss": 3.0}


def test_never_reading_is_refused():
    with pytest.raises(UsageError, match="would never read them"):
        Metrics(every=0)
