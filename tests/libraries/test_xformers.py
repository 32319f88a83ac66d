"""The stand-in for xformers, beside scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel.errors import UnsupportedError
from windtunnel.libraries.xformers import ops
from windtunnel.libraries.xformers.ops.fmha import attn_bias
from windtunnel.session import Session

Tensor = torch.Tensor


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        yield session


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize(("dtype", "kernel"), [
    (torch.float16, "aten::_flash_attention_forward"), (torch.float32, "aten::_efficient_attention_forward"),
])  # fmt: skip
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_pytorch(session: Session, dtype: torch.dtype, kernel: str, causal: bool) -> None:
    bias = ops.LowerTriangularMask() if causal else None
    mask = torch.ones(9, 9, dtype=torch.bool).tril() if causal else None
    since = len(session.trace)
    on_both(lambda q, k, v: ops.memory_efficient_attention(q, k, v, bias), lambda q, k, v: attended(q, k, v, mask),
            drawn(*[(2, 9, 3, 16)] * 3, dtype=dtype))  # fmt: skip
    assert kernel in [row.signature.name for row in session.trace.since(since)]


def test_a_bias_that_is_a_tensor_and_one_head(session: Session) -> None:
    q, k, v, wide = drawn((2, 9, 3, 16), (2, 9, 3, 16), (2, 9, 3, 16), (2, 3, 9, 16))
    bias = wide[..., :9]  # whose rows lie at multiples of 16 bytes
    found = ops.memory_efficient_attention(q.cuda(), k.cuda(), v.cuda(), wide.cuda()[..., :9])
    wanted = attended(q.float(), k.float(), v.float(), bias.float())
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=4e-3)
    alone = ops.memory_efficient_attention(q[:, :, 0].cuda(), k[:, :, 0].cuda(), v[:, :, 0].cuda())
    wanted = attended(*(t[:, :, :1].float() for t in (q, k, v)))[:, :, 0]
    torch.testing.assert_close(alone.cpu().float(), wanted, rtol=1e-2, atol=4e-3)


def test_scales_and_gradients_of_biases(session: Session) -> None:
    def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, bias, scale=0.2).transpose(1, 2)

    shapes = (2, 8, 3, 4), (2, 8, 3, 4), (2, 8, 3, 4), (2, 3, 8, 8)  # a width that flash attention does not take
    on_both(lambda *t: ops.memory_efficient_attention(*t, scale=0.2), reference, drawn(*shapes, dtype=torch.float32))
    zeros = torch.zeros(1, 1, 8, 8)
    without = drawn(*shapes[:3], dtype=torch.float32)
    on_both(lambda *t: ops.memory_efficient_attention(*t, scale=0.2), lambda *t: reference(*t, zeros), without)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_texts_one_behind_another(session: Session, causal: bool, dtype: torch.dtype) -> None:
    q, k, v = drawn(*[(1, 12, 2, 16)] * 3, dtype=dtype)
    lengths = [3, 1, 8]
    bias = attn_bias.BlockDiagonalMask.from_seqlens(lengths)
    bias = bias.make_causal() if causal else bias
    found = ops.memory_efficient_attention(q.cuda(), k.cuda(), v.cuda(), bias)
    parts = [t.float().split(lengths, 1) for t in (q, k, v)]
    wanted = torch.cat(
        [
            attended(*texts, torch.ones(size, size, dtype=torch.bool).tril() if causal else None)
            for size, *texts in zip(lengths, *parts, strict=True)
        ],
        1,
    )
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=4e-3)
    assert [part.shape[1] for part in bias.split(found)] == lengths


def test_what_is_not_answered(session: Session) -> None:
    q = torch.ones(1, 4, 2, 16, device="cuda")
    with pytest.raises(UnsupportedError, match="memory_efficient_attention with op"):
        ops.memory_efficient_attention(q, q, q, op=object())
    with pytest.raises(UnsupportedError, match="memory_efficient_attention of 5 dimensions"):
        ops.memory_efficient_attention(q[None], q[None], q[None])
    with pytest.raises(UnsupportedError, match="the bias AttentionBias: give a tensor"):
        ops.memory_efficient_attention(q, q, q, ops.AttentionBias())


def test_inputs_that_do_not_fit_are_refused_as_the_library_does(session: Session) -> None:
    attention = ops.memory_efficient_attention
    q, k = torch.rand(2, 10, 4, 8, device="cuda"), torch.rand(2, 20, 4, 8, device="cuda")
    with pytest.raises(TypeError, match="requires a floating point input type"):
        attention(q, q, q, torch.zeros(2, 4, 10, 10, device="cuda").bool())
    with pytest.raises(
        NotImplementedError, match=r"attn_bias\.stride\(-2\) % 4 != 0 .*\n.*HINT: To use an `attn_bias`"
    ):
        attention(q, q, q, torch.zeros(2, 4, 10, 10, device="cuda"))
    with pytest.raises(ValueError, match=r"Invalid shape for attention bias: .*\(expected \(2, 4, 10, 20\)\)"):
        attention(q, k, k, torch.zeros(1, 1, 10, 20, device="cuda"))
    with pytest.raises(RuntimeError, match="invalid dtype for bias - should match query's dtype"):
        attention(q, k, k, torch.zeros(2, 4, 16, 24, device="cuda", dtype=torch.float16)[:, :, :10, :20])
    with pytest.raises(ValueError, match="Expected batch_size=1 when using block-diagonal bias"):
        attention(q, q, q, attn_bias.BlockDiagonalMask.from_seqlens([10, 10]))
    with pytest.raises(ValueError, match="Please provide inputs in BMHK format rather than BMK"):
        attention(q[:1, :, 0], q[:1, :, 0], q[:1, :, 0], attn_bias.BlockDiagonalMask.from_seqlens([10]))
    with pytest.raises(ValueError, match="HINT: We don't support broadcasting"):
        attention(q, k[:1], k[:1])
    with pytest.raises(ValueError, match="Query/Key/Value should either all have the same dtype"):
        attention(q, k.half(), k.half())
    with pytest.raises(UnsupportedError, match="a block-diagonal mask of 20 keys over 10: the kernel reads beyond"):
        attention(q[:1], k[:1, :10], k[:1, :10], attn_bias.BlockDiagonalMask.from_seqlens([10], [20]))
