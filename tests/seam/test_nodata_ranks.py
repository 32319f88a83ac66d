"""Ranks without data do what ranks with data do: the same operations, memory and time, whatever divides the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Record, Trace

pytestmark = pytest.mark.long
"""Each starts programs of its own, and most read what one pair of runs says."""

PROGRAM = Path(__file__).parent / "programs" / "parallelisms.py"
WAYS = ("ddp", "ddp_accumulating", "fsdp1", "fsdp2", "fsdp2_mixed", "tensor", "tensor_and_fsdp2", "pipeline")


def run(folder: Path, *options: str) -> tuple[list[Any], list[Trace]]:
    """What two ranks say of their memory and time, and their traces."""
    out, trace = folder / "seen", folder / "run.trace"
    start = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xA100", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*start, *options, "--trace", str(trace), str(PROGRAM), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)]
    return seen, [Trace.load(trace), Trace.load(folder / "run.rank1.trace")]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The program with data, and without."""
    return run(tmp_path_factory.mktemp("data")), run(tmp_path_factory.mktemp("none"), "--no-data")


@pytest.mark.parametrize("way", WAYS)
def test_memory_and_time_are_those_with_data(both: Any, way: str) -> None:
    (with_data, _), (without, _) = both
    for rank, expected in zip(without, with_data, strict=True):
        assert rank[way] == expected[way]


def operation(record: Record) -> tuple[Any, ...]:
    """What a row says of the work; the bytes follow from the shapes."""
    where = record.lane.device, record.lane.stream
    return record.kind, record.signature.name, record.signature.shapes, where, record.start_ns, record.end_ns


@pytest.mark.parametrize("rank", [0, 1])
def test_operations_are_those_with_data(both: Any, rank: int) -> None:
    with_data, without = ([row for row in traces[rank] if row.kind != Kind.NOTE] for _, traces in both)
    assert sum(row.kind == Kind.COLLECTIVE for row in with_data) > 50
    for one, other in zip(without, with_data, strict=True):
        (*what, start, end), (*expected, begun, ended) = operation(one), operation(other)
        assert what == expected
        assert (start, end) == pytest.approx((begun, ended), abs=5)  # statistics of bfloat16 have other bytes on meta


def test_integers_go_through_collectives_and_messages(tmp_path: Path) -> None:
    """They decide what programs do next: counts of tokens, sizes of parts (torchtitan reads the first after each)."""
    said = []
    for name, options in (("data", ()), ("none", ("--no-data",))):
        start = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xA100", "--nproc-per-node", "2", *options]
        program = str(PROGRAM.with_name("known_values.py"))
        done = subprocess.run([*start, program, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append([json.loads((tmp_path / f"{name}.{rank}").read_text()) for rank in (0, 1)])
    with_data, without = said
    assert without == with_data
    assert with_data[0]["sum"] == [10, 3]
    assert with_data[1]["sent"] == [4, 5, 0]
    assert with_data[1]["numbers"] == pytest.approx([3e-4, 0.75, 0.1, 1.0])
