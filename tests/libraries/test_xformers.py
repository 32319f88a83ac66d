"""The stand-in for xformers, beside scaled dot-product attention."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel.errors import MissingNameError, UnsupportedError
from windtunnel.libraries.xformers import ops, profiler
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
    with pytest.raises(UnsupportedError, match="the operator 'triton': leave op out"):
        ops.memory_efficient_attention(q, q, q, op=("triton", None))
    with pytest.raises(UnsupportedError, match="the operator 'triton': leave op out"):
        ops.memory_efficient_attention_forward_requires_grad(q, q, q, op="triton")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="memory_efficient_attention with output_dtype"):
        ops.memory_efficient_attention(q, q, q, output_dtype=torch.float16)
    with pytest.raises(UnsupportedError, match="the bias AttentionBias: give a tensor"):
        ops.memory_efficient_attention(q, q, q, ops.AttentionBias())
    with pytest.raises(MissingNameError, match="PagedBlockDiagonalPaddedKeysMask"):
        attn_bias.PagedBlockDiagonalPaddedKeysMask  # noqa: B018


def seen(queries: int, keys: int, sees: Callable[[int, int], bool]) -> Tensor:
    return torch.tensor([[sees(i, j) for j in range(keys)] for i in range(queries)])


TEXTS = [3, 1, 8]
MASKS: dict[str, tuple[object, Callable[[int, int], bool]]] = {
    "LowerTriangularFromBottomRight": (attn_bias.LowerTriangularFromBottomRightMask(), lambda i, j: j <= i + 5),
    "...LocalAttention": (attn_bias.LowerTriangularFromBottomRightMask().make_local_attention(3),
                          lambda i, j: i + 5 - 3 < j <= i + 5),
    "LocalAttentionFromBottomRight": (attn_bias.LocalAttentionFromBottomRightMask(2, 1),
                                      lambda i, j: i + 5 - 2 <= j <= i + 5 + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_masks_of_more_keys_than_queries(session: Session, name: str, dtype: torch.dtype) -> None:
    bias, sees = MASKS[name]
    mask = seen(7, 12, sees)
    assert isinstance(bias, attn_bias.AttentionBias)
    torch.testing.assert_close(bias.materialize((7, 12)).exp().bool(), mask)
    given = drawn((2, 7, 3, 16), (2, 12, 3, 16), (2, 12, 3, 16), dtype=dtype)
    if dtype is torch.float32 and "Local" in name:
        if name.startswith("Local"):
            with pytest.raises(NotImplementedError, match=r"`cutlassF-pt` is not supported because:\n.*attn_bias type"):
                ops.memory_efficient_attention(*(t.cuda() for t in given), bias)
        else:
            found = ops.memory_efficient_attention(*(t.detach().cuda() for t in given), bias)
            torch.testing.assert_close(found.cpu(), attended(*given, mask))
            with pytest.raises(NotImplementedError, match="memory_efficient_attention_backward"):
                ops.memory_efficient_attention(*(t.cuda().requires_grad_() for t in given), bias)
        return
    on_both(
        lambda q, k, v: ops.memory_efficient_attention(q, k, v, bias), lambda q, k, v: attended(q, k, v, mask), given
    )


BLOCKS: dict[str, Callable[[int, int, int], bool]] = {
    "make_causal_from_bottomright": lambda i, j, more: j <= i + more,
    "make_local_attention": lambda i, j, more: i - 2 < j <= i,
    "make_local_attention_from_bottomright": lambda i, j, more: i + more - 2 < j <= i + more,
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_masks_of_texts(session: Session, name: str, more: int, dtype: torch.dtype) -> None:
    keys = [length + more for length in TEXTS]
    whole = attn_bias.BlockDiagonalMask.from_seqlens(TEXTS, keys)
    bias = getattr(whole, name)(*(() if name.startswith("make_causal") else (2,)))
    blocks = [seen(q, k, lambda i, j: BLOCKS[name](i, j, more)) for q, k in zip(TEXTS, keys, strict=True)]
    mask = torch.block_diag(*blocks).bool()
    torch.testing.assert_close(bias.materialize((12, sum(keys))).exp().bool(), mask)
    q, k, v = drawn((1, 12, 2, 16), (1, sum(keys), 2, 16), (1, sum(keys), 2, 16), dtype=dtype)
    found = ops.memory_efficient_attention(q.detach().cuda(), k.detach().cuda(), v.detach().cuda(), bias)
    wanted = attended(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=4e-3)


def test_lists_of_texts_go_together_and_apart(session: Session) -> None:
    images = [torch.randn(2, 5, 4, 16, device="cuda"), torch.randn(3, 2, 4, 16, device="cuda")]
    bias, joined = attn_bias.BlockDiagonalMask.from_tensor_list(images)
    assert joined.shape == (1, 16, 4, 16)
    assert bias.q_seqinfo.seqstart_py == [0, 5, 10, 12, 14, 16]
    found = bias.split(ops.memory_efficient_attention(joined, joined, joined, bias))
    for image, part in zip(images, found, strict=True):
        torch.testing.assert_close(part.cpu(), attended(*[image.cpu()] * 3))


def test_groups_of_heads(session: Session) -> None:
    q, k, v = drawn((2, 6, 2, 4, 16), (2, 6, 2, 1, 16), (2, 6, 2, 1, 16))
    q, k, v = q.detach().cuda(), *(t.detach().cuda().expand(2, 6, 2, 4, 16) for t in (k, v))
    since = len(session.trace)
    found = ops.memory_efficient_attention(q, k, v, ops.LowerTriangularMask())
    rows = [row for row in session.trace.since(since) if "attention" in row.signature.name]
    assert [row.signature.shapes[1] for row in rows] == [(2, 6, 2, 16)]
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    wanted = attended(*(t.cpu().float().flatten(2, 3) for t in (q, k, v)), mask).unflatten(2, (2, 4))
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=4e-3)
    single = ops.memory_efficient_attention(q.float(), k.float(), v.float(), ops.LowerTriangularMask())
    torch.testing.assert_close(single.cpu(), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(NotImplementedError, match="operator does not support BMGHK format"):
        ops.memory_efficient_attention(q.requires_grad_(), k, v)


def test_the_kernel_that_is_asked_for(session: Session) -> None:
    q = torch.randn(2, 8, 2, 16, device="cuda", dtype=torch.float16)
    for op, name in ((ops.MemoryEfficientAttentionCutlassOp, "efficient"), ((ops.fmha.flash.FwOp, None), "flash")):
        since = len(session.trace)
        ops.memory_efficient_attention(q, q, q, op=op)
        assert [row.signature.name for row in session.trace.since(since)][-1] == f"aten::_{name}_attention_forward"
    flash = ops.MemoryEfficientAttentionFlashAttentionOp
    with pytest.raises(ValueError, match=r"`fa2F@.*` is not supported because:\n    dtype=torch.float32"):
        ops.memory_efficient_attention(q.float(), q.float(), q.float(), op=flash)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_caches_of_which_a_part_is_in_use(session: Session, dtype: torch.dtype) -> None:
    padding, used, queries = 10, [4, 9, 1], [2, 1, 1]
    bias = attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(queries, padding, used)
    q, k, v = (t.detach() for t in drawn((1, 4, 2, 16), (1, 30, 2, 16), (1, 30, 2, 16), dtype=dtype))
    mask = torch.zeros(4, 30, dtype=torch.bool)
    at = 0
    for text, (count, length) in enumerate(zip(queries, used, strict=True)):
        for i in range(count):
            mask[at + i, text * padding : text * padding + length - count + i + 1] = True
        at += count
    torch.testing.assert_close(bias.materialize((4, 30)).exp().bool(), mask)
    found = ops.memory_efficient_attention(q.cuda(), k.cuda(), v.cuda(), bias)
    wanted = attended(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=1e-2)
    window = attn_bias.BlockDiagonalCausalLocalAttentionPaddedKeysMask.from_seqlens_local(queries, padding, used, 2)
    if dtype is torch.bfloat16:
        near = mask & ~mask.roll(-2, 1)
        near[mask.sum(1) <= 2] = mask[mask.sum(1) <= 2]
        found = ops.memory_efficient_attention(q.cuda(), k.cuda(), v.cuda(), window)
        wanted = attended(q.float(), k.float(), v.float(), near)
        torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_a_gated_block_has_the_products_of_the_library(session: Session, dtype: torch.dtype, packed: bool) -> None:
    block = ops.SwiGLU(16, 24, bias=True, _pack_weights=packed).to("cuda", dtype)
    x = torch.randn(2, 5, 16, device="cuda", dtype=dtype, requires_grad=True)
    since = len(session.trace)
    found = block(x)
    products = [row for row in session.trace.since(since) if row.signature.name == "aten::addmm"]
    assert len(products) == (2 if packed and dtype is torch.bfloat16 else 3)
    found.sum().backward()
    w1, b1, w2, b2, w3, b3 = (t.detach().cpu().float() for t in block._ordered_params() if t is not None)
    y = x.detach().cpu().float().requires_grad_()
    wanted = F.linear(F.silu(F.linear(y, w1, b1)) * F.linear(y, w2, b2), w3, b3)
    wanted.sum().backward()
    close = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found.detach().cpu().float(), wanted.detach(), **close)
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad.cpu().float(), y.grad, **close)
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_rows_chosen_and_added(session: Session) -> None:
    x = torch.randn(6, 3, 4, device="cuda")
    index, scale = torch.tensor([4, 1], device="cuda"), torch.randn(4, device="cuda")
    source = torch.randn(2, 3, 4, device="cuda", requires_grad=True)
    wanted = x.cpu().index_add(0, index.cpu(), source.detach().cpu() * scale.cpu(), alpha=0.5)
    found = ops.scaled_index_add(x, index, source, scale, 0.5)
    torch.testing.assert_close(found.detach().cpu(), wanted)
    assert found.data_ptr() == x.data_ptr()
    found.sum().backward()
    assert source.grad is not None
    torch.testing.assert_close(source.grad.cpu(), (0.5 * scale.cpu()).expand(2, 3, 4))
    both = ops.index_select_cat([x.flatten(1), x.flatten(1)[:, :2]], [index, index.flip(0)])
    torch.testing.assert_close(
        both.cpu(), torch.cat([wanted[[4, 1]].flatten(), wanted.flatten(1)[[1, 4], :2].flatten()])
    )


def test_parts_whose_gradients_lie_together_are_not_copied(session: Session) -> None:
    whole = torch.randn(3, 4, 5, device="cuda", requires_grad=True)
    parts = ops.unbind(whole, 0)
    assert ops.stack_or_none(parts, 0) is not None
    assert ops.stack_or_none([parts[0], parts[2], parts[1]], 0) is None
    since = len(session.trace)
    torch.autograd.backward(parts, torch.ones_like(whole).unbind(0))
    assert not [row for row in session.trace.since(since) if row.signature.name in ("aten::cat", "aten::stack")]
    assert whole.grad is not None
    assert whole.grad.cpu().eq(1).all()


def test_profilers_write_their_steps(session: Session, tmp_path: Path) -> None:
    schedule = [(profiler.MemSnapshotsProfiler, 0, 2), (profiler.PyTorchProfiler, 2, 4)]
    model = torch.nn.Linear(8, 8).cuda()
    with profiler.profile(str(tmp_path), module=model, schedule=schedule):
        for _ in range(6):
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            profiler.step()
    assert "Active Memory" in (tmp_path / "000002_memory_trace_plot.html").read_text()
    (trace,) = tmp_path.glob("profile_CPU_CUDA_*/*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)


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
