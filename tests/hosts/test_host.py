"""Hosts of the catalogue and of files: how fast they issue work, and how wide a step's range is that they bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel import gpus, hosts
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
    reference, rented = CostModel(gpu), CostModel(gpu, host=hosts.find("cloud-vm"))
    assert rented.dispatch_ns(ADD) == pytest.approx(1.8 * reference.dispatch_ns(ADD), rel=0.01)
    assert rented.event_ns == pytest.approx(1.8 * reference.event_ns, rel=0.01)
    assert rented.launch_ns == reference.launch_ns
    assert rented.malloc_ns(1 << 20) == reference.malloc_ns(1 << 20)


def test_the_reference_is_what_is_taken_where_no_host_is_named() -> None:
    gpu = gpus.find("A100")
    assert CostModel(gpu, host=hosts.find(hosts.DEFAULT)).dispatch_ns(ADD) == CostModel(gpu).dispatch_ns(ADD)


def test_a_file_that_this_machine_wrote_describes_a_host(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(hosts.measured_here(None))
    assert hosts.find(str(path)).name == "mine"
    path = tmp_path / "with_gpu.toml"
    path.write_text(hosts.measured_here(1.25))
    assert hosts.find(str(path)).issue == 1.25


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
