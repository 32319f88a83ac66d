"""Floating point numbers that an integer type does not hold, as CUDA converts them.

Expected: the outputs that pytorch/pytorch#140347, #87556, #154311, #154726, #180159 and #36807 print, and the PTX ISA.
"""

from __future__ import annotations

import math

import pytest
import torch

import windtunnel
from windtunnel.session import Session

LEAST, MOST = -(1 << 31), (1 << 31) - 1
LONGEST = (1 << 63) - 1
NUMBERS = [math.nan, math.inf, -math.inf, 3e9, -3e9, 300.0, -1.0]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (torch.float32, torch.int32, [0, MOST, LEAST, MOST, LEAST, 300, -1]),
        (torch.float64, torch.int32, [LEAST, MOST, LEAST, MOST, LEAST, 300, -1]),
        (torch.bfloat16, torch.int32, [0, MOST, LEAST, MOST, LEAST, 300, -1]),
        (torch.float16, torch.int32, [0, MOST, LEAST, MOST, LEAST, 300, -1]),
        (torch.float32, torch.int64, [-LONGEST - 1, LONGEST, -LONGEST - 1, 3 * 10**9, -3 * 10**9, 300, -1]),
        (torch.float32, torch.uint8, [0, 255, 0, 0, 0, 44, 255]),
        (torch.float32, torch.uint32, [0, (1 << 32) - 1, 0, 3 * 10**9, 0, 300, 0]),
        (torch.float64, torch.uint64, [1 << 63, (1 << 64) - 1, 0, 3 * 10**9, 0, 300, 0]),
    ],
)
def test_a_conversion_saturates(
    session: Session, source: torch.dtype, target: torch.dtype, expected: list[int]
) -> None:
    numbers = torch.tensor(NUMBERS, dtype=source, device="cuda")
    assert numbers.to(target).tolist() == expected
    assert torch.zeros(7, dtype=target, device="cuda").copy_(numbers).tolist() == expected
    filled = torch.zeros(2, 7, dtype=target, device="cuda")
    filled[:] = numbers
    assert filled.tolist() == [expected, expected]


def test_a_blocking_copy_is_converted_on_the_host(session: Session) -> None:
    """at::native::copy_requires_temporaries of aten/src/ATen/native/cuda/Copy.cu: on the GPU if it does not block."""
    number, on_host = torch.tensor([math.inf]), torch.tensor([math.inf]).to(torch.int32).tolist()
    assert number.to("cuda", torch.int32).tolist() == on_host
    assert number.to("cuda", torch.int32, non_blocking=True).tolist() == [MOST]
    assert number.cuda().to("cpu", torch.int32).tolist() == on_host
    assert torch.zeros(1, dtype=torch.int32, device="cuda").copy_(number, non_blocking=True).tolist() == [MOST]


def test_numbers_that_fit_stay(session: Session) -> None:
    numbers = torch.linspace(-7.9, 7.9, 64)
    for target in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        assert numbers.cuda().to(target).tolist() == numbers.to(target).tolist()
    assert torch.tensor([math.nan], device="cuda").bool().tolist() == [True]


def test_a_captured_conversion_saturates_when_it_is_replayed(session: Session) -> None:
    numbers, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = numbers.int()
    numbers.copy_(torch.tensor([math.nan, math.inf]))
    graph.replay()
    assert made.tolist() == [0, MOST]


@pytest.mark.parametrize("target", [torch.int64, torch.uint8])
def test_a_copy_into_integers_runs_without_data(target: torch.dtype) -> None:
    """pytorch/benchmark's LearningToPaint copies a picture into bytes."""
    with windtunnel.emulate("V100", no_data=True):
        numbers = torch.rand(3, device="cuda")
        made = torch.zeros(2, 3, dtype=target, device="cuda")
        made[0] = numbers
        assert made[1].copy_(numbers).dtype is target
