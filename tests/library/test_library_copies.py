"""Moving and copying: identity, nested batches, staging, the policy; streams and timers."""

from __future__ import annotations

import collections
import dataclasses
import time

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.trace.operation import Kind

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Batch:
    values: torch.Tensor
    name: str


# mission 37, 39
def test_what_is_there_is_itself(session):
    model = nn.Linear(2, 2)
    nested = {"a": [torch.ones(1)], "b": Pair(torch.ones(2), 3), "c": Batch(torch.ones(3), "x")}
    assert wt.to(nested, wt.cpu()) is nested
    assert wt.to(model, wt.cpu()) is model
    on_gpu = wt.to(nested, wt.gpu(1))
    assert wt.to(on_gpu, wt.gpu(1)) is on_gpu
    tensor = torch.ones(1, device="cuda")
    assert wt.to(tensor, "cuda") is tensor
    assert wt.to(tensor, 0) is tensor


# mission 35, 92, 93, 106
def test_nested_batches_keep_their_kinds(session):
    defaults = collections.defaultdict(list, {"k": torch.ones(1)})
    nested = [Pair(torch.ones(2), "text"), {"d": Batch(torch.arange(3), "n")}, (None, 5), defaults]
    moved = wt.to(nested, wt.gpu(1))
    assert wt.device_of(moved) == wt.gpu(1)
    assert wt.device_of(nested) == wt.cpu()
    assert isinstance(moved[0], Pair)
    assert moved[1]["d"].name == "n"
    assert moved[1]["d"].values.tolist() == [0, 1, 2]
    assert moved[2] == (None, 5)
    assert type(moved[3]) is collections.defaultdict
    assert moved[3]["missing"] == []


def test_packed_sequences_move_and_keep_their_sizes_on_the_cpu(session):
    packed = wt.to([pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])], wt.gpu(0))[0]
    assert packed.data.device == wt.gpu(0)
    assert packed.batch_sizes.device == wt.cpu()


# mission 50, 109
def test_modules_move_in_place(session):
    model = nn.Linear(2, 2)
    assert wt.to(model, wt.gpu(1)) is model
    assert wt.device_of(model) == wt.gpu(1)
    twin = wt.copy(model, wt.gpu(0))
    assert twin is not model
    assert (wt.device_of(twin), wt.device_of(model)) == (wt.gpu(0), wt.gpu(1))


# mission 38
def test_copy_always_allocates(session):
    tensor = torch.ones(1024, device=wt.gpu(0))
    before = wt.memory(wt.gpu(0)).allocated_bytes
    twin = wt.copy([tensor], wt.gpu(0))[0]
    assert wt.memory(wt.gpu(0)).allocated_bytes - before == 4096
    assert twin is not tensor
    assert torch.equal(twin, tensor)


# mission 99, 100
def test_a_copy_to_the_gpu_does_not_wait_and_cannot_come_out_wrong(session):
    source = torch.ones(256, 1024)
    weight = torch.randn(1024, 1024, device="cuda")
    for _ in range(4):
        weight = weight @ weight
    begin = len(session.trace)
    moved = wt.to(source, wt.gpu(0))
    source.zero_()
    kinds = [record.kind for record in list(session.trace)[begin:]]
    assert Kind.SYNCHRONIZE not in kinds
    assert moved.sum().item() == 256 * 1024


def test_a_copy_to_the_cpu_may_be_read_at_once(session):
    weight = torch.full((512, 512), 0.5, device="cuda")
    for _ in range(4):
        weight = weight @ torch.eye(512, device="cuda")
    assert wt.to(weight, wt.cpu()).eq(0.5).all()


def test_gradients_flow_through_moves(session):
    leaf = torch.ones(3, requires_grad=True)
    wt.to(leaf, wt.gpu(0)).sum().backward()
    assert leaf.grad.tolist() == [1, 1, 1]


# mission 41
def test_policy(session):
    tensor = torch.ones(4)
    with (
        wt.policy("warn"),
        pytest.warns(wt.DeviceCopyWarning, match="wt.to copies 16 bytes from cpu to cuda:0") as seen,
    ):
        wt.to([[tensor]], wt.gpu(0))
    assert seen[0].filename == __file__
    with wt.policy("error"):
        with pytest.raises(UsageError, match="place the data there first"):
            wt.to(tensor, wt.gpu(0))
        with pytest.raises(UsageError, match=r"wt\.to copies"):
            wt.to(nn.Linear(1, 1), wt.gpu(0))
        assert wt.to(tensor, wt.cpu()) is tensor
    assert wt.to(tensor, wt.gpu(0)).device == wt.gpu(0)
    with pytest.raises(UsageError, match="policy 'loud' does not exist"):
        wt.policy("loud")


def test_policy_without_a_block_stays_until_the_next(session):
    former = wt.policy("error")
    with pytest.raises(UsageError, match=r"wt\.to copies"):
        wt.to(torch.ones(1), wt.gpu(0))
    former.__exit__(None, None, None)
    assert wt.to(torch.ones(1), wt.gpu(0)).device == wt.gpu(0)


# mission 40
def test_timer_on_a_gpu_measures_the_gpu(session):
    large = torch.randn(1024, 1024, device="cuda")
    timing = wt.timer().measure(torch.matmul, large, large, repeats=5)
    small = wt.timer().measure(torch.matmul, large[:8, :8], large[:8, :8], repeats=5)
    assert timing.clock == "CUDA events"
    assert len(timing.times_s) == 5
    assert 2 * 1024**3 / 16e12 < timing.median_s < 5e-3
    assert small.median_s < timing.median_s
    assert timing.spread_s >= 0


def test_timer_on_the_cpu_measures_the_wall():
    timer = wt.timer(wt.cpu())
    for _ in range(3):
        with timer:
            time.sleep(0.01)
    assert timer.timing.clock == "wall clock"
    assert timer.timing.median_s >= 0.01
    assert "3 runs, wall clock" in str(timer.timing)
    with pytest.raises(UsageError, match="has timed nothing yet"):
        print(wt.timer(wt.cpu()).timing)


def test_timer_leaves_out_what_failed():
    timer = wt.timer(wt.cpu())
    with pytest.raises(ValueError, match="no"), timer:
        raise ValueError("no")
    assert timer._pairs == []


# mission 42
def test_side_stream_is_ordered_by_join(session):
    values = torch.ones(512, 512, device="cuda")
    side = wt.stream(wt.gpu(0))
    with side:
        result = values @ values
    side.join(result)
    assert (result + 1).eq(513).all()
    assert [finding.code for finding in session.findings() if finding.severity == "error"] == []


def test_streams_of_the_cpu_run_in_place():
    side = wt.stream(wt.cpu())
    with side:
        result = torch.ones(2) * 2
    side.join(result)
    assert result.tolist() == [2, 2]
