"""Nested tensors on devices, and the attention kernels for texts of several lengths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import windtunnel
from windtunnel.session import Session

LENGTHS = (3, 5)


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        yield session


def jagged(dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> torch.Tensor:
    parts = [torch.randn(length, 32, dtype=dtype) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", requires_grad=True)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, [4, 8]).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "kernel"), [(torch.half, "_flash"), (torch.float32, "_efficient")])
def test_jagged_attention_and_its_gradient(session: Session, dtype: torch.dtype, kernel: str, causal: bool) -> None:
    q, k, v = (jagged(dtype) for _ in range(3))
    out = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=causal)
    out.values().float().square().sum().backward()
    names = {row.signature.name for row in session.trace}
    assert {f"aten::{kernel}_attention_forward", f"aten::{kernel}_attention_backward"} <= names
    for position in range(len(LENGTHS)):
        own = [t.detach().unbind()[position].float().requires_grad_() for t in (q, k, v)]
        alone = [t.view(-1, 4, 8).transpose(0, 1) for t in own]
        want = torch._scaled_dot_product_attention_math(*(t.unsqueeze(0) for t in alone), is_causal=causal)[0][0]
        want.square().sum().backward()
        assert torch.allclose(out.unbind()[position].float(), want, atol=1e-2)
        for whole, part in zip((q, k, v), own, strict=True):
            assert torch.allclose(whole.grad.unbind()[position].float(), part.grad, atol=2e-2)


def test_causal_masks_of_unequal_lengths_end_together() -> None:
    q, k = (torch.randn(n, 2, 8, device="cuda", dtype=torch.half) for n in (2, 5))
    begins = [torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (2, 5)]
    found = torch.ops.aten._flash_attention_forward(q, k, k, *begins, 2, 5, 0.0, True, False)[0]
    mask = torch.ones(2, 5, dtype=torch.bool).tril(3)
    one = [t.cpu().float().transpose(0, 1).unsqueeze(0) for t in (q, k, k)]
    want = F.scaled_dot_product_attention(*one, attn_mask=mask)[0].transpose(0, 1)
    assert torch.allclose(found.cpu().float(), want, atol=1e-2)


def test_variable_length_attention_of_torch_nn() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q = torch.randn(8, 4, 16, device="cuda", dtype=torch.half, requires_grad=True)
    begins = torch.tensor([0, 3, 8], device="cuda", dtype=torch.int32)
    varlen.varlen_attn(q, q, q, begins, begins, 5, 5).sum().backward()
    assert q.grad.is_cuda


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_gradient_comes_back_from_a_padded_tensor(layout: torch.layout) -> None:
    parts = [torch.randn(length, 16) for length in LENGTHS]
    nested = torch.nested.nested_tensor(parts, layout=layout, device="cuda", requires_grad=True)
    linear = nn.Linear(16, 8).cuda()
    linear(nested).to_padded_tensor(0.0).sum().backward()
    assert linear.weight.grad.is_cuda
    assert nested.grad.is_cuda


def test_a_dense_tensor_becomes_a_nested_one_where_it_is() -> None:
    made = torch.nested.as_nested_tensor(torch.randn(2, 3, 4, device="cuda"))
    assert made.is_cuda
    assert all(part.is_cuda for part in made.unbind())


@pytest.mark.parametrize(("shape", "width"), [((2, 1, 4), (4,)), ((2, 1), ())])
def test_a_dense_tensor_is_added_to_each_part_of_a_nested_one(shape: tuple[int, ...], width: tuple[int, ...]) -> None:
    parts = [torch.randn(length, *width) for length in LENGTHS]
    rows = torch.randn(shape)
    nested = torch.nested.nested_tensor(parts, device="cuda")
    for name in ("add", "mul"):
        made = getattr(nested, name)(rows.cuda())
        assert made.device == nested.device
        for part, row, found in zip(parts, rows, made.unbind(), strict=True):
            assert torch.equal(found.cpu(), getattr(part, name)(row))
    with pytest.raises(RuntimeError, match="nested"):
        nested.add(torch.ones(3, 1, *width, device="cuda"))


def test_nested_tensors_are_multiplied_part_by_part() -> None:
    first, second = (
        [torch.randn(2, length, 4).half() for length in LENGTHS],
        [torch.randn(2, 4, 6).half() for _ in LENGTHS],
    )
    product = torch.nested.nested_tensor([part[0] for part in first], device="cuda").bmm(
        torch.nested.nested_tensor([part[0] for part in second], device="cuda")
    )
    for a, b, found in zip(first, second, product.unbind(), strict=True):
        torch.testing.assert_close(found.cpu(), a[0] @ b[0])
    dense = torch.stack([part[0] for part in second]).cuda()
    beside = torch.nested.nested_tensor([part[0] for part in first], device="cuda").bmm(dense)
    assert all(torch.equal(a, b) for a, b in zip(product.unbind(), beside.unbind(), strict=True))


@pytest.mark.parametrize("mask", [0.0, float("-inf")])
def test_masked_parts_of_a_nested_tensor_have_a_softmax(mask: float) -> None:
    """https://github.com/pytorch/pytorch/blob/v2.6.0/test/test_nestedtensor.py: test_sdpa"""
    parts = [torch.full((length, 4), mask) for length in LENGTHS]
    nested = torch.nested.nested_tensor(parts, device="cuda")
    found, masked = torch._safe_softmax(nested, -1), torch.all(nested.eq(float("-inf")), -1, keepdim=True)
    for part, softmax, whole in zip(parts, found.unbind(), masked.unbind(), strict=True):
        assert torch.equal(softmax.cpu(), torch._safe_softmax(part, -1))
        assert whole.cpu().flatten().tolist() == [mask != 0] * len(part)


def test_a_stream_is_recorded_for_all_that_a_jagged_tensor_is_made_of(session: Session) -> None:
    def used_on(stream: torch.cuda.Stream, recorded: bool) -> set[int]:
        values, offsets = torch.ones(1024, 8, device="cuda"), torch.tensor([0, 500, 1024], device="cuda")
        nested = torch.nested.nested_tensor_from_jagged(values, offsets, offsets.diff())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**9)
            if recorded:
                nested.record_stream(stream)
        return {nested.values().data_ptr(), nested.offsets().data_ptr(), nested.lengths().data_ptr()}

    stream = torch.cuda.Stream()
    assert used_on(stream, recorded=False) == used_on(stream, recorded=True)
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    assert not used_on(stream, recorded=True) & used_on(stream, recorded=True)


def test_the_gradient_of_a_dense_tensor_beside_a_jagged_one_is_clamped() -> None:
    nested, dense = jagged(torch.float32), torch.ones(1, 1, 32, device="cuda", requires_grad=True)
    gradients = torch.autograd.grad(torch.clamp_max(nested, dense).sum(), (nested, dense))
    assert {gradient.device.type for gradient in gradients} == {"cuda"}
    expected = (nested.detach().values() <= 1).float()
    assert torch.equal(gradients[0].values(), expected)


def test_leaves_without_views_beside_a_second_stream(session: Session) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)], requires_grad=True, device="cuda")
    sparse = torch.eye(3, device="cuda").to_sparse().requires_grad_()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(1, device="cuda")
    assert nested.detach().is_nested
    assert sparse.to_dense().tolist() == torch.eye(3).tolist()


def test_a_group_norm_of_few_elements_is_priced(session: Session) -> None:
    x = torch.ones(1, 2, 3, 4, device="cuda", requires_grad=True)
    torch.nn.functional.group_norm(x, 2).sum().backward()
    assert x.grad is not None
