"""Where cuFFT leaves the results of transforms, as an H200 did (tests/conformance/hardware)."""

from __future__ import annotations

import pytest
import torch

from windtunnel.session import Session


@pytest.mark.parametrize(
    ("shape", "dim", "strides"),
    [
        ((5, 6, 7), (0, 1, 2), (6, 1, 30)),
        ((5, 6, 7), (1, 2), (24, 4, 1)),
    ],
)
def test_strides_of_a_real_transform(
    session: Session, shape: tuple[int, ...], dim: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    found = torch.fft.rfftn(x.cuda(), dim=dim)
    assert found.stride() == strides
    torch.testing.assert_close(found.cpu(), torch.fft.rfftn(x, dim=dim))
