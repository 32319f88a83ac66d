"""The operators of SyncBatchNorm give what batch normalization over all parts gives."""

from __future__ import annotations

import torch

from windtunnel.session import Session


def parts() -> tuple[torch.Tensor, list[torch.Tensor]]:
    whole = torch.randn(6, 3, 4, 5, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    return whole, [whole[:2], whole[2:]]


def test_the_statistics_of_parts_are_those_of_the_whole(session: Session) -> None:
    whole, pieces = parts()
    means, inverses = zip(*(torch.batch_norm_stats(piece, 1e-5) for piece in pieces), strict=True)
    running_mean, running_var = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    counts = torch.tensor([2.0 * 20, 4.0 * 20], device="cuda")
    mean, inverse = torch.batch_norm_gather_stats_with_counts(
        whole, torch.stack(means), torch.stack(inverses), running_mean, running_var, 0.1, 1e-5, counts
    )
    out, saved_mean, saved_inverse = torch.native_batch_norm(
        whole, None, None, expected_mean := torch.zeros(3, device="cuda"), expected_var := torch.ones(3, device="cuda"),
        True, 0.1, 1e-5,
    )  # fmt: skip
    assert mean.is_cuda
    torch.testing.assert_close((mean, inverse), (saved_mean, saved_inverse))
    torch.testing.assert_close((running_mean, running_var), (expected_mean, expected_var))
    torch.testing.assert_close(torch.batch_norm_elemt(whole, None, None, mean, inverse, 1e-5), out)


def test_backward_from_sums_is_the_gradient(session: Session) -> None:
    whole, _ = parts()
    weight = torch.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True)
    x = whole.clone().requires_grad_()
    grad = torch.randn_like(x)
    torch.nn.functional.batch_norm(x, None, None, weight, None, training=True).backward(grad)
    mean, inverse = torch.batch_norm_stats(whole, 1e-5)
    with torch.no_grad():
        sums = torch.batch_norm_backward_reduce(grad, whole, mean, inverse, weight, True, True, True)
        found = torch.batch_norm_backward_elemt(
            grad, whole, mean, inverse, weight, sums[0], sums[1], torch.tensor([120], dtype=torch.int32, device="cuda")
        )
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(sums[2], weight.grad)
    assert torch.batch_norm_backward_reduce(grad, whole, mean, inverse, None, True, False, False)[2] is None


def test_half_precision_keeps_single_statistics(session: Session) -> None:
    half = torch.randn(4, 3, 2, device="cuda").half()
    mean, inverse = torch.batch_norm_stats(half, 1e-5)
    assert mean.dtype == inverse.dtype == torch.float32
    assert torch.batch_norm_elemt(half, None, None, mean, inverse, 1e-5).dtype == torch.float16
