"""What the host's own work takes where it is measured: `--host-time measured`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

import windtunnel
from windtunnel.errors import UsageError
from windtunnel.reports.parts.summary import summarize
from windtunnel.seam.torch.dispatch import host_time
from windtunnel.seam.torch.state import core
from windtunnel.trace.operation import Kind


def host_ns(work: Callable[[], object], factor: float = 1.0) -> int:
    """The host's clock after ten small operators with `work` between them."""
    with windtunnel.emulate("V100", host_time="measured", host_factor=factor) as emulated:
        x = torch.ones(4, device="cuda")
        begin = emulated.machine.host.now_ns
        for _ in range(10):
            work()
            x.add_(1)
        return emulated.machine.host.now_ns - begin


def python() -> int:
    return sum(range(100_000))


def test_python_between_operators_takes_host_time() -> None:
    assert host_ns(python) > 5 * host_ns(lambda: None)


def test_the_factor_is_what_it_is_multiplied_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a thread clock of the test's own: a busy machine's own can be off by more than a factor tells apart."""
    clock_ns = 0

    def work() -> None:
        nonlocal clock_ns
        clock_ns += 5_000_000

    for reader in (core, host_time):
        monkeypatch.setattr(reader, "thread_time_ns", lambda: clock_ns)
    dispatch_ns = host_ns(lambda: None, 10.0)
    assert host_ns(work, 10.0) - dispatch_ns == pytest.approx(10 * (host_ns(work) - dispatch_ns), rel=0.01)


def test_waiting_is_no_work_of_the_host_s() -> None:
    assert host_ns(lambda: threading.Event().wait(0.02)) < 50_000_000


def test_the_program_s_clock_and_waits_know_of_it() -> None:
    with windtunnel.emulate("V100", host_time="measured", host_factor=1000.0) as emulated:
        x = torch.ones(1 << 20, device="cuda")
        begin = time.perf_counter()
        python()
        assert time.perf_counter() - begin > 0.1
        x.add_(1)
        python()
        torch.cuda.synchronize()  # the kernel ended long before
    waits = [record.duration_ns for record in emulated.trace if record.kind == Kind.SYNCHRONIZE]
    assert waits[-1] < 10_000


def test_the_report_states_the_factor() -> None:
    with windtunnel.emulate("V100", host_time="measured", host_factor=0.5) as emulated:
        torch.ones(4, device="cuda")
    assert "measured on this machine, times 0.5" in summarize(emulated.trace, []).times_are
    with windtunnel.emulate("V100") as emulated:
        torch.ones(4, device="cuda")
    assert "measured" not in summarize(emulated.trace, []).times_are


@pytest.mark.parametrize(
    "options", [{"host_factor": 2.0}, {"host_time": "measured", "host_factor": 0.0}, {"host_factor": float("nan")}]
)
def test_a_factor_is_positive_and_needs_measured_time(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="host_factor"):
        windtunnel.emulate("V100", **options).__enter__()


def test_memory_of_which_nothing_is_computed_costs_a_call_and_launches_nothing() -> None:
    with windtunnel.emulate("V100") as emulated:
        x = torch.ones(4, device="cuda")
        cost = emulated.machine.devices[0].cost
        for make in (
            lambda: torch.empty(4, device="cuda"),
            lambda: torch.empty_like(x),
            lambda: x.new_empty(8),
        ):
            begin, rows = emulated.machine.host.now_ns, len(emulated.trace)
            make()
            assert emulated.machine.host.now_ns - begin == cost.empty_ns > 0
            assert len(emulated.trace) == rows
