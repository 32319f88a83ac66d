"""Hosts of the catalogue and of files: how fast they issue work, and how wide a step's range is that they bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import windtunnel
from windtunnel import gpus, hosts
from windtunnel.analysis.savings import Savings
from windtunnel.cost.model import CostModel
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.reports.parts.time import RunTiming, Split

ADD = "aten::add"


@pytest.mark.parametrize("name", hosts.names())
def test_a_host_of_the_catalogue_is_complete_and_its_band_holds_it(name: str) -> None:
    host = hosts.find(name)
    assert host.description
    assert host.source
    assert host.band[0] <= 1 <= host.band[1]


def test_a_slower_host_issues_work_more_slowly_and_leaves_kernels_alone() -> None:
    gpu = gpus.find("A100")
    reference, rented = CostModel(gpu), CostModel(gpu, issue=hosts.find("cloud-vm").issue)
    assert rented.dispatch_ns(ADD) == pytest.approx(2.2 * reference.dispatch_ns(ADD), rel=0.01)
    assert rented.event_ns == pytest.approx(2.2 * reference.event_ns, rel=0.01)
    assert rented.view_ns == pytest.approx(2.2 * reference.view_ns, rel=0.01)
    assert rented.launch_ns == reference.launch_ns
    assert rented.malloc_ns(1 << 20) == reference.malloc_ns(1 << 20)


def test_the_median_rented_machine_is_what_is_taken_where_no_host_is_named() -> None:
    with windtunnel.emulate("A100") as session:
        assert session.trace.facts["host"] == {
            "name": "cloud-vm",
            "issue": 2.2,
            "band": list(hosts.find("cloud-vm").band),
        }
    assert CostModel(gpus.find("A100"), issue=hosts.find("reference").issue).dispatch_ns(ADD) == 6_000


def test_a_replay_prices_calls_as_the_host_of_its_trace_does() -> None:
    with windtunnel.emulate("A100", host="h200-vm") as session:
        torch.ones(4, device="cuda") + 1
    assert Savings(session.trace.canonical()).old[0].dispatch_ns(ADD) == round(1.86 * 6_000)


def time_ns(host: str, work: Callable[[], object]) -> int:
    """What some work takes the host."""
    with windtunnel.emulate("A100", host=host):
        begun = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - begun


@pytest.fixture
def host(tmp_path: Path) -> str:
    """One on which only autograd's nodes, an optimizer's parameters and new events take time beside the reference's."""
    path = tmp_path / "host.toml"
    path.write_text(
        'description = "x"\nsource = "y"\nissue = 1.0\nbackward_us = 40.0\nparameter_us = 1.5\nevent_us = 14.0\n'
        "python_ns = 50.0\nband = [0.5, 2.0]\n"
    )
    return str(path)


def trained(steps: int, **options: bool) -> None:
    """A parameter of four numbers, to whose gradient one kernel leads."""
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.Adam([weight], **options)
    for _ in range(steps):
        weight.exp().sum().backward()
        optimizer.step()


def test_a_backward_pass_takes_the_host_its_nodes_and_an_optimizer_its_tensors(host: str) -> None:
    """An Adam's parameter has three tensors of state, from its first step on."""
    first, second = (
        time_ns(host, lambda n=n: trained(n)) - time_ns("reference", lambda n=n: trained(n)) for n in (1, 2)
    )
    assert first == 40_000 + 1_500
    assert second - first == 2 * 40_000 + 4 * 1_500  # the gradient is added to the one before


def test_a_fused_optimizer_looks_at_its_state_at_a_third_of_the_cost(host: str) -> None:
    first, second = (
        time_ns(host, lambda n=n: trained(n, fused=True)) - time_ns("reference", lambda n=n: trained(n, fused=True))
        for n in (1, 2)
    )
    assert second - first == 2 * 40_000 + 2 * 1_500


def test_an_optimizer_that_loops_has_its_parameters_in_its_operators(host: str) -> None:
    looped = [time_ns(name, lambda: trained(1, foreach=False)) for name in (host, "reference")]
    assert looped[0] - looped[1] == 40_000


def test_a_new_event_that_tells_the_time_costs_once(host: str) -> None:
    def recorded() -> None:
        timing, other = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
        for event in (timing, timing, other):
            event.record()

    assert time_ns(host, recorded) - time_ns("reference", recorded) == 14_000


def test_a_file_that_this_machine_wrote_describes_a_host(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(hosts.measured_here(None))
    assert hosts.find(str(path)).name == "mine"
    path = tmp_path / "with_gpu.toml"
    path.write_text(hosts.measured_here(1.25))
    assert hosts.find(str(path)).issue == 1.25
    assert hosts.find(str(path)).backward_us == pytest.approx(15 * 1.25 / 2.2, abs=0.1)


def test_what_is_no_host_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are cloud-vm, desktop-5ghz"):
        hosts.find("mainframe")
    (tmp_path / "odd.toml").write_text(
        'description = "x"\nsource = "y"\nissue = 1.0\npython_ns = 50.0\nband = [2.0, 1.0]\n'
    )
    with pytest.raises(FileFormatError, match="its band ends before it begins"):
        hosts.find(str(tmp_path / "odd.toml"))
    (tmp_path / "less.toml").write_text("issue = 1.0\n")
    with pytest.raises(FileFormatError, match="does not describe a host"):
        hosts.find(str(tmp_path / "less.toml"))


def step(launch: int) -> RunTiming:
    """A step of 1 ms, of which the device waits so many hundredths for launches."""
    split = Split(0, 100, {"launch": launch, "compute": 100 - launch})
    return RunTiming(8, 1_000_000, splits=[split], host_band=(0.5, 2.0))


@pytest.mark.parametrize(
    ("launch", "expected"), [(0, (900_000, 1_100_000)), (100, (500_000, 2_000_000)), (50, (700_000, 1_550_000))]
)
def test_a_step_that_the_host_bounds_has_the_band_of_hosts(launch: int, expected: tuple[int, int]) -> None:
    assert step(launch).step_range_ns(0.1) == expected


def test_without_a_band_there_is_no_range() -> None:
    assert step(50).step_range_ns(None) is None
