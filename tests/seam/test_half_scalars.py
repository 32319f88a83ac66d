"""Numbers beside half precision tensors: CUDA's kernels take them in float32, compute there, and round once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from windtunnel.session import Session

HALVES = (torch.float16, torch.bfloat16)
HUGE = 1e39
"""Larger than the largest of float16 and of bfloat16."""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "add",
    [
        lambda x, y: torch.add(x, y, alpha=0.1),
        lambda x, y: torch.sub(x, y, alpha=-0.1),
        lambda x, y: x.clone().add_(y, alpha=0.1),
        lambda x, y: torch.rsub(y, x, alpha=-0.1),
        lambda x, y: x.clone().sub_(y, alpha=-0.1),
        lambda x, y: torch._foreach_add([x], [y], alpha=0.1)[0],
        lambda x, y: torch._foreach_sub([x], [y], alpha=-0.1)[0],
    ],
)
def test_alpha_is_not_rounded(
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype, session: Session
) -> None:
    x, y = torch.randn(2000).to(dtype), torch.randn(2000).to(dtype)
    expected = (x.double() + 0.1 * y.double()).to(dtype)
    found = add(x.cuda(), y.cuda()).cpu()
    assert (found != expected).sum() <= 2  # float32 before half precision rounds twice


def test_lists_in_place_are_those_given(session: Session) -> None:
    x, y = torch.ones(4, dtype=torch.bfloat16).cuda(), torch.ones(4, dtype=torch.bfloat16).cuda()
    torch._foreach_add_([x], [y], alpha=0.001)
    torch._foreach_sub_([x], [y], alpha=0.25)
    assert x.tolist() == [0.75] * 4


@pytest.mark.parametrize("dtype", HALVES)
def test_bounds_may_be_larger_than_the_type(dtype: torch.dtype, session: Session) -> None:
    x = torch.tensor([-math.inf, -2.0, 3.0, math.inf, math.nan], dtype=dtype).cuda()
    for found in (x.clamp(-HUGE, HUGE), F.hardtanh(x, -HUGE, HUGE), x.clamp_max(HUGE), x.clone().clamp_(min=-HUGE)):
        assert found.tolist()[:4] == [-math.inf, -2.0, 3.0, math.inf]
    assert torch._foreach_clamp_max([x], HUGE)[0].tolist()[:3] == [-math.inf, -2.0, 3.0]
    with pytest.raises(RuntimeError, match="without overflow"):
        x.fill_(HUGE)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("eps", [1e-3, 1e-6])
def test_logit_keeps_its_bounds(dtype: torch.dtype, eps: float, session: Session) -> None:
    x = torch.tensor([0.0, 1.0, 0.25], dtype=dtype).cuda()
    expected = torch.logit(x.cpu().float(), eps).to(dtype)
    torch.testing.assert_close(torch.logit(x, eps).cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.interpolate(x, scale_factor=1.7, mode="trilinear"),
        lambda x: F.interpolate(x[:, :, 0], scale_factor=1.7, mode="bicubic"),
        lambda x: F.interpolate(x[:, :, 0, 0], scale_factor=1.7, mode="linear"),
        lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)),
    ],
)
@pytest.mark.parametrize("dtype", HALVES)
def test_averages_are_rounded_once(
    compute: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, session: Session
) -> None:
    x = torch.randn(2, 3, 5, 6, 7).to(dtype)
    assert torch.equal(compute(x.cuda()).cpu(), compute(x.float()).to(dtype))


def test_the_first_bag_begins_at_the_first_index(session: Session) -> None:
    """pytorch#66750: the CPU refuses such offsets."""
    weight, indices = torch.randn(10, 3).cuda(), torch.tensor([1, 2, 4, 5]).cuda()
    found = F.embedding_bag(indices, weight, torch.tensor([1, 2]).cuda(), mode="sum")
    assert torch.equal(found, F.embedding_bag(indices, weight, torch.tensor([0, 2]).cuda(), mode="sum"))


@pytest.mark.parametrize("offsets", [[0, 3, 2], [0, 9]])
def test_a_bag_that_ends_before_it_begins_is_an_assert(offsets: list[int], session: Session) -> None:
    weight, indices = torch.randn(10, 3).cuda(), torch.tensor([1, 2, 4, 5]).cuda()
    F.embedding_bag(indices, weight, torch.tensor(offsets).cuda(), mode="sum")
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.synchronize()


def test_a_random_operator_keeps_its_own_error(session: Session) -> None:
    with pytest.raises(RuntimeError, match=r"normal expects std >= 0\.0, but found std -1"):
        torch.empty(3, device="cuda").normal_(0, -1)
