"""Memory snapshots of real GPUs: what was held before the recording counts, and an OOM is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel import emulate
from windtunnel.analysis.replay import replay
from windtunnel.cli import group
from windtunnel.judgement import judge
from windtunnel.measure import snapshot
from windtunnel.reports.parts import charts
from windtunnel.reports.parts.summary import summarize
from windtunnel.trace.trace import Trace

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


def recorded(tmp_path: Path, events: list[dict[str, object]], blocks: list[dict[str, object]]) -> Path:
    """A snapshot with one segment of 20 MiB that is filled by `blocks`, and a history of `events`."""
    segment = {"device": 0, "address": 1 << 30, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    address = int(str(segment["address"]))
    for one in blocks:
        one["address"] = address
        address += int(str(one["size"]))
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({"segments": [segment | {"blocks": blocks}], "device_traces": [events]}), "utf-8")
    return path


def block(size: int, state: str, *frames: tuple[str, int]) -> dict[str, object]:
    named = [{"filename": file, "line": line, "name": "step"} for file, line in frames]
    return {"size": size * MIB, "requested_size": size * MIB, "state": state, "frames": named}


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/somebody/project/train.py", "train.py"),
        ("C:\\research\\project\\train.py", "train.py"),
        ("examples/train.py", "examples/train.py"),
    ],
)
def test_files_of_another_machine_are_named_briefly(tmp_path: Path, file: str, shown: str) -> None:
    library = ("C:\\research\\lib\\site-packages\\torch\\nn\\modules\\module.py", 7)
    generated = ("/tmp/torchinductor_me/ab/cabc.py", 9)
    held = block(20, "active_allocated", library, generated, (file, 5))
    trace = snapshot.load(recorded(tmp_path, [], [held]))
    (action,) = [one for one in trace.memory_actions() if one.action == "alloc"]
    assert (action.site.file, action.site.line) == (shown, 5)


def test_two_files_of_one_name_stay_two(tmp_path: Path) -> None:
    blocks = [block(10, "active_allocated", (f"/project/{folder}/layers.py", 5)) for folder in ("a", "b")]
    trace = snapshot.load(recorded(tmp_path, [], blocks))
    assert [one.site.file for one in trace.memory_actions() if one.action == "alloc"] == ["layers.py", "b/layers.py"]


def test_a_snapshot_without_a_history_says_how_to_record_one(tmp_path: Path) -> None:
    path = recorded(tmp_path, [], [block(12, "active_allocated"), block(8, "inactive")])
    done = CliRunner().invoke(group, ["memory", str(path)], standalone_mode=False)
    assert "_record_memory_history()" in done.output.splitlines()[-1]
    assert "expandable_segments" not in done.output
    summary = summarize(snapshot.load(path), [])
    assert "_record_memory_history()" in summary.next


def test_what_no_line_is_known_for_is_said(tmp_path: Path) -> None:
    blocks = [block(12, "active_allocated"), block(8, "active_allocated", ("/project/train.py", 3))]
    trace = snapshot.load(recorded(tmp_path, [], blocks))
    assert "train.py:3 held 8.00 MiB, no line is known for 12.0 MiB" in summarize(trace, []).why
