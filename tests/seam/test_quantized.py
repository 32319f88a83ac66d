"""Quantization of infinities and NaN, as CUDA's kernels saturate them (`kernels/quantized` names the sources)."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from windtunnel.session import Session

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel")
NUMBERS = [nan, inf, -inf, 1e30, 300.0, 1.5]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.quint8, [0, 255, 0, 255, 255, 15]), (torch.qint8, [-128, 127, -128, 127, 127, 15])],
    ids=str,
)
def test_nan_is_the_least(session: Session, dtype: torch.dtype, expected: list[int]) -> None:
    """pytorch/pytorch#153340."""
    numbers = torch.tensor(NUMBERS, device="cuda")
    assert torch.quantize_per_tensor(numbers, 0.1, 0, dtype).int_repr().tolist() == expected
    scales, points = torch.tensor([0.1], dtype=torch.double).cuda(), torch.tensor([0]).cuda()
    assert torch.quantize_per_channel(numbers.view(1, -1), scales, points, 0, dtype).int_repr().tolist() == [expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_numbers_by_channel_are_the_greatest(session: Session, dtype: torch.dtype) -> None:
    numbers = torch.tensor(NUMBERS, dtype=dtype, device="cuda").view(1, -1).expand(2, -1)
    scales, points = torch.tensor([0.5, 1.0]).cuda(), torch.tensor([0, 3], dtype=torch.int32).cuda()
    found = torch.fake_quantize_per_channel_affine(numbers, scales, points, 0, 0, 255)
    assert found.tolist() == [[0, 127.5, 0, 127.5, 127.5, 1.5], [-3, 252, -3, 252, 252, 2]]
