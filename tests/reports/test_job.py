"""The lines of a cluster's job: what communication nothing hides, by group, and within what the step is known."""

from types import SimpleNamespace

import pytest

from windtunnel.reports.parts import job
from windtunnel.trace.operation import Kind, Lane, Signature
from windtunnel.trace.trace import Trace

US = 1_000


def rank(steps=4, band=0.1, network_band=(0.8, 1.5)):
    """Each step computes for 60 us, and 40 us of its collectives on two nodes and 10 us within a node remain."""
    trace = Trace()
    work, line, host = (trace.lanes.number(lane) for lane in (Lane(0, 0), Lane(0, 1), Lane(-1, 0)))
    kernel = trace.signatures.number(Signature("aten::mm"))
    between = trace.signatures.number(Signature("c10d::allreduce_", detail=(("ranks", 16), ("nodes", 2))))
    inside = trace.signatures.number(Signature("c10d::allgather_", detail=(("ranks", 8),)))
    for step in range(steps):
        at = 110 * US * step
        trace.rows.append((Kind.KERNEL, work, kernel, 0, at, at, at + 60 * US, 0))
        trace.rows.append((Kind.COLLECTIVE, line, between, 0, at, at + 50 * US, at + 100 * US, 0))
        trace.rows.append((Kind.COLLECTIVE, line, inside, 0, at, at + 100 * US, at + 110 * US, 0))
        trace.rows.append((Kind.STEP, host, kernel, 0, at + US, at + US, at + US, step))
    trace.facts.update(band=band, network_band=network_band, world_size=16, devices=[], gpus=[])
    return trace


@pytest.mark.parametrize("steps", [2, 3, 4, 9])
def test_exposed_communication_is_told_by_group(steps):
    lines = job.describe({0: rank(steps)}, "16 ranks by 1 process", {0: "0-15"}, 16)
    assert lines["exposed communication"] == (
        "10.0 µs a step (9 %) in groups of 8 ranks, 40.0 µs a step (36 %) in groups of 16 ranks on 2 nodes"
    )


def test_the_range_of_a_step_holds_kernels_network_and_the_slowest_gpu():
    words = job.describe({0: rank()}, "", {0: "0-15"}, 16)["step range"]
    # Kernels: 0.1 of 70 us; network: -20 to +50 % of 40 us; the slowest of 16 GPUs is expected 1.77 deviations of
    # 8/5.4 % beyond the middle, that of 8 GPUs, which the clock is of, 1.42.
    assert words.startswith(
        "99.4 µs to 132 µs: kernels within ±10 %, the network's 36 % of the step within 0.80 to 1.50"
    )
    assert words.endswith("the slowest of 16 GPUs 0.5 % later than that of 8")


def test_no_gpu_of_eight_is_later_than_the_clock():
    words = job.describe({0: rank()}, "", {0: "0-7"}, 8)["step range"]
    assert words.endswith("within 0.80 to 1.50 of it")


def test_samples_are_those_of_as_many_batches_as_samplers_have_replicas(monkeypatch):
    monkeypatch.setattr(job.throughput, "measure", lambda trace: SimpleNamespace(number=8))
    monkeypatch.setattr(job.throughput, "tokens", lambda trace: None)
    trace = rank()
    step_s = 110e-6
    each = job.describe({0: trace}, "", {0: "0-15"}, 16)["job"]
    assert each == f"{8 * 16 / step_s:,.0f} samples a second in all, if each of 16 ranks has batches of its own"
    trace.facts["replicas"] = 4
    known = job.describe({0: trace}, "", {0: "0-15"}, 16)["job"]
    assert known == f"{8 * 4 / step_s:,.0f} samples a second in all, with 4 replicas"


def test_one_node_has_no_network_in_its_range():
    trace = rank(network_band=None)
    trace.signatures.number(Signature("x"))
    words = job.describe({0: rank(band=None)}, "", {0: "0-15"}, 16)
    assert "step range" not in words


def test_gpus_that_a_seed_has_drawn_are_not_counted_twice():
    trace = rank()
    trace.facts["jitter"] = 7
    words = job.describe({0: trace}, "", {0: "0-15"}, 16)["step range"]
    assert words.startswith("99.4 µs to 131 µs: kernels")  # 0.5 % of the step less than without
    assert words.endswith("16 GPUs that differ as --jitter 7 draws them")


def test_lines_of_a_trace_timed_anew_keep_what_is_not_time():
    trace = rank()
    trace.facts["job"] = {"ranks": "16 ranks by 2 processes", "exposed communication": "none"}
    lines = job.retimed(trace)
    assert lines["ranks"] == "16 ranks by 2 processes"
    assert "on 2 nodes" in lines["exposed communication"]
