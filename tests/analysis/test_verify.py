"""A run on a GPU beside its emulation: what counts as the same, and how a difference is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import windtunnel
from helpers.operations import Kernel, Synchronize, submit
from windtunnel import gpus
from windtunnel.analysis import verify
from windtunnel.analysis.compare import Numbers, measure
from windtunnel.analysis.verify import Outcome, compare
from windtunnel.machine.memory.settings import parse
from windtunnel.reports.parts.time import measure as timing
from windtunnel.session import build_machine
from windtunnel.trace.operation import Signature
from windtunnel.trace.trace import Trace

NATIVE = Outcome(
    0,
    "step 1 loss 0.5\nstep 2 loss 0.25\n",
    "",
    Numbers(step_ns=1000, kernels=3, kernel_ns=900, peak_allocated_bytes=4096, peak_reserved_bytes=8192),
    ("addmm", "relu", "addmm"),
)


def different(emulated, tolerance=0.1):
    return [row.name for row in compare(NATIVE, emulated, tolerance) if not row.same]


def test_a_run_is_the_same_as_itself():
    rows = compare(NATIVE, NATIVE, 0.0)
    assert all(row.same for row in rows)
    assert {row.difference for row in rows} == {0.0, None}
    assert verify.to_json(rows, 0.0)["same"] is True


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"code": 1}, "exit code"),
        ({"errors": "Traceback (most recent call last):\nValueError: no\n"}, "error"),
        ({"printed": "step 1 loss 0.5\nstep 2 loss 0.35\n"}, "printed"),
        ({"printed": "step 1 loss 0.5\n"}, "printed"),
        ({"printed": "step 1 loss 0.5\nstep 2 loss nan\n"}, "printed"),
        ({"numbers": replace(NATIVE.numbers, step_ns=1200)}, "median step, ns"),
        ({"numbers": replace(NATIVE.numbers, peak_reserved_bytes=0)}, "peak reserved, bytes"),
        ({"kernels": ("relu", "addmm", "addmm")}, "order of kernels"),
    ],
)
def test_each_difference_is_told_by_its_name(change, name):
    assert different(replace(NATIVE, **change)) == [name]


def test_differences_within_the_tolerance_do_not_count():
    close = replace(
        NATIVE, printed="step 1 loss 0.52\nstep 2 loss 0.25\n", numbers=replace(NATIVE.numbers, step_ns=1090)
    )
    assert different(close) == []
    assert different(close, 0.01) == ["printed", "median step, ns"]


def test_without_steps_the_run_is_timed_as_a_whole():
    native = replace(NATIVE, numbers=replace(NATIVE.numbers, step_ns=None, duration_ns=500))
    emulated = replace(NATIVE, numbers=replace(NATIVE.numbers, step_ns=None, duration_ns=800))
    (row,) = [row for row in compare(native, emulated, 0.1) if row.name == "time, ns"]
    assert (row.difference, row.same) == (pytest.approx(0.6), False)


def test_what_is_relative_to_nothing_has_no_number():
    native = replace(NATIVE, numbers=replace(NATIVE.numbers, peak_allocated_bytes=0))
    (row,) = [row for row in compare(native, NATIVE, 0.1) if row.name.startswith("peak allocated")]
    assert (row.difference, row.same) == (None, False)


def test_the_error_is_the_last_exception_of_a_traceback():
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\ntorch.OutOfMemoryError: CUDA out of memory.\n'
    assert verify.error_of(text) == "torch.OutOfMemoryError: CUDA out of memory."
    assert verify.error_of("UserWarning: slow\n") == "none"


def test_kernels_have_one_name_on_both_sides():
    trace = Trace()
    machine = build_machine(gpus.parse("V100"), (11, 2), trace, parse(""))
    names = ("aten::cudnn_convolution", "aten::add_.Tensor", "aten::clamp_min_")
    for name in names:
        submit(machine, Kernel(name, signature=Signature(name, ((64,), (64,)), ("float32",) * 2, 1)))
    submit(machine, Synchronize())
    assert verify.kernels_of(trace) == ("convolution", "add", "relu")
    found = verify.outcome(0, "", "", trace)
    assert found.numbers.kernels == 3
    assert all(row.same for row in compare(found, found, 0.0))


def test_a_step_ends_when_the_device_has_done_it_as_in_the_report() -> None:
    with windtunnel.emulate("V100", no_data=True) as session:
        net = torch.nn.Linear(4096, 4096, device="cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(4096, 4096, device="cuda")
        for _ in range(5):  # the host runs ahead
            net(x).sum().backward()
            optimizer.step()
    assert measure(session.trace).step_ns == timing(session.trace).step_ns > 10_000_000
