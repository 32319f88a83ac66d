"""Launches that an H200 refused (`tools/hardware/cuda/errors.cu`), and the room on an SM."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from windtunnel import gpus
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.limits import LaunchShape, refusal, resident

H200 = gpus.find("H200")
ANSWERS = Path(__file__).parents[2] / "conformance/hardware/2026-11-27-H200-answers.json.gz"
RECORDED = json.loads(gzip.decompress(ANSWERS.read_bytes()))["stages"]["cuda"]["native"]["errors"]
LAUNCHES = {
    "0": (LaunchShape((1, 1, 1), (1025, 1, 1), 0), 1024, 0),
    "1": (LaunchShape((0, 1, 1), (32, 1, 1), 0), 1024, 0),
    "2": (LaunchShape((1, 65536, 1), (32, 1, 1), 0), 1024, 0),
    "3": (LaunchShape((1, 1, 1), (1, 1, 65), 0), 1024, 0),
    "4": (LaunchShape((1, 1, 1), (32, 1, 1), 100 << 10), 1024, 0),
    "5": (LaunchShape((1, 1, 1), (32, 1, 1), 300 << 10), 1024, 0),
    "6": (LaunchShape((1, 1, 1), (32, 1, 1), 200 << 10), 1024, 200 << 10),
    "15": (LaunchShape((1, 1, 1), (128, 1, 1), 0), 64, 0),
    "17": (LaunchShape((1, 1, 1), (3, 1, 1), 0), 1024, 0),
}


@pytest.mark.parametrize("mode", LAUNCHES)
def test_a_launch_is_refused_as_an_h200_refused_it(mode: str) -> None:
    shape, most_threads, opted = LAUNCHES[mode]
    said = next(line for line in RECORDED[mode] if line.startswith("launch: "))
    error = errors.table()[refusal(shape, H200, most_threads, 0, opted)]
    assert f"launch: {error.code} {error.name}: {error.text}" == said


def test_a_cooperative_launch_must_fit_the_gpu_at_once() -> None:
    code = refusal(LaunchShape((100000, 1, 1), (1024, 1, 1), 0, cooperative=True), H200, 1024, 0, 0)
    assert RECORDED["29"][0] == f"cooperative: {code} {errors.table()[code].name}: {errors.table()[code].text}"
    assert refusal(LaunchShape((H200.sm_count, 1, 1), (1024, 1, 1), 0, cooperative=True), H200, 1024, 0, 0) == 0


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "blocks"),
    [(256, 0, 32, 8), (1024, 0, 32, 2), (32, 0, 16, 32), (128, 100 << 10, 32, 2), (256, 0, 128, 2)],
)
def test_blocks_of_an_sm_are_limited_by_threads_shared_memory_and_registers(threads, shared, registers, blocks) -> None:
    assert resident(threads, shared, registers, H200) == blocks
