"""Memory snapshots of real GPUs: what was held before the recording counts, and an OOM is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from understudy import emulate
from understudy.analysis.replay import replay
from understudy.cli import group
from understudy.judgement import judge
from understudy.measure import snapshot
from understudy.reports.parts import charts
from understudy.trace.trace import Trace

RECORDED = sorted((Path(__file__).parents[1] / "conformance" / "memory").glob("*.json.gz"))
MIB = 1 << 20


def held_bytes(trace: Trace) -> int:
    """The peak that the history itself adds up to."""
    return int(charts.memory(trace, 0)[0]["peak_bytes"])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_the_report_says_what_the_replay_says(path: Path) -> None:
    trace = snapshot.load(path)
    (result,) = replay(path)
    totals = trace.facts["devices"][result.device]
    assert totals["peak_allocated_bytes"] == result.peak_allocated_bytes
    assert totals["peak_reserved_bytes"] == result.peak_reserved_bytes
    assert held_bytes(trace) == pytest.approx(result.peak_allocated_bytes, rel=0.02)


def test_where_there_are_no_times_the_numbers_of_actions_are_the_axis() -> None:
    (device,) = charts.memory(snapshot.load(RECORDED[0]), 0)
    assert not device["by_time"]
    assert device["times"] == sorted(device["times"])


@pytest.fixture
def fragmented(tmp_path: Path) -> Path:
    """A snapshot with an OOM that another setting would have avoided: half of each segment stays in use."""
    import torch

    path = tmp_path / "oom.pickle"
    with emulate("V100"):
        torch.cuda.memory._record_memory_history()
        kept = []
        for _ in range(7):
            large = torch.empty(2000 * MIB, dtype=torch.uint8, device="cuda")
            del large
            kept.append(torch.empty(1100 * MIB, dtype=torch.uint8, device="cuda"))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(3000 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._dump_snapshot(str(path))
    return path


def test_one_command_says_why_it_ran_out_and_what_to_change(fragmented: Path) -> None:
    done = CliRunner().invoke(group, ["memory", str(fragmented)], standalone_mode=False)
    assert "ran out of memory: tried to allocate 2.93 GiB on cuda:0" in done.output
    assert "fix: " in done.output
    (finding,) = [one for one in judge([snapshot.load(fragmented)]) if one.code == "out-of-memory"]
    assert finding.advice in done.output
