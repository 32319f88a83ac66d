"""The stand-in for flash_attn, beside scaled dot-product attention and plain PyTorch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel.errors import MissingNameError, UnsupportedError
from windtunnel.libraries import flash_attn
from windtunnel.libraries.flash_attn import bert_padding
from windtunnel.libraries.flash_attn.layers import rotary
from windtunnel.libraries.flash_attn.losses.cross_entropy import CrossEntropyLoss
from windtunnel.libraries.flash_attn.ops import layer_norm, rms_norm
from windtunnel.libraries.flash_attn.ops.triton import layer_norm as triton_norm
from windtunnel.libraries.flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from windtunnel.session import Session

Tensor = torch.Tensor


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("A100") as session:
        yield session


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def seen(queries: int, keys: int, causal: bool = False, left: int = -1, right: int = -1) -> Tensor:
    """What the library's documentation says of causal masks and windows: aligned at the bottom right."""
    mask = torch.ones(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            place = i + keys - queries
            hidden = (causal and j > place) or (left >= 0 and j < place - left)
            hidden = hidden or (right >= 0 and not causal and j > place + right)
            mask[i, j] = not hidden
    return mask


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("width", [32, 40, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_pytorch(session: Session, heads: int, width: int, causal: bool) -> None:
    tensors = drawn((2, 17, 4, width), (2, 17, heads, width), (2, 17, heads, width))
    on_both(
        lambda q, k, v: flash_attn.flash_attn_func(q, k, v, causal=causal),
        lambda q, k, v: attended(q, k, v, seen(17, 17, causal)),
        tensors,
    )


@pytest.mark.parametrize(("causal", "window"), [(True, (-1, -1)), (True, (5, 0)), (False, (3, 4)), (False, (-1, 2))])
def test_windows_and_other_lengths(session: Session, causal: bool, window: tuple[int, int]) -> None:
    tensors = drawn((1, 9, 2, 16), (1, 21, 2, 16), (1, 21, 2, 16))
    on_both(
        lambda q, k, v: flash_attn.flash_attn_func(q, k, v, softmax_scale=0.3, causal=causal, window_size=window),
        lambda q, k, v: attended(q, k, v, seen(9, 21, causal, *window), 0.3),
        tensors,
    )


def test_packed_tensors(session: Session) -> None:
    (qkv,) = drawn((2, 8, 3, 2, 16))
    on_both(lambda t: flash_attn.flash_attn_qkvpacked_func(t, causal=True),
            lambda t: attended(*t.unbind(2), seen(8, 8, True)), [qkv])  # fmt: skip
    q, kv = drawn((2, 8, 4, 16), (2, 8, 2, 2, 16))
    on_both(flash_attn.flash_attn_kvpacked_func, lambda q, kv: attended(q, *kv.unbind(2)), [q, kv])


def test_texts_of_several_lengths(session: Session) -> None:
    ends = [0, 5, 6, 16]
    tensors = drawn((16, 2, 16), (16, 2, 16), (16, 2, 16))

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        texts = [
            attended(*(t[None, first:last] for t in (q, k, v)), seen(last - first, last - first, True))[0]
            for first, last in pairwise(ends)
        ]
        return torch.cat(texts)

    begins = torch.tensor(ends, dtype=torch.int32, device="cuda")
    on_both(
        lambda q, k, v: flash_attn.flash_attn_varlen_func(q, k, v, begins, begins, 10, 10, causal=True),
        reference,
        tensors,
    )
    packed = torch.stack(tensors, 1)
    found = flash_attn.flash_attn_varlen_qkvpacked_func(packed.cuda(), begins, 10, causal=True)
    torch.testing.assert_close(found.cpu().float(), reference(*[t.float() for t in tensors]), rtol=1e-2, atol=4e-3)


def capped(q: Tensor, k: Tensor, v: Tensor, softcap: float, slopes: Tensor | None) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if slopes is not None:
        place = torch.arange(q.shape[1])
        scores = scores - slopes[:, None, None] * (place[:, None] - place).abs()
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("alibi", [False, True])
def test_softcapping_and_alibi(session: Session, softcap: float, alibi: bool) -> None:
    if not softcap and not alibi:
        return
    slopes = torch.tensor([0.5, 0.25]) if alibi else None
    there = slopes.cuda() if slopes is not None else None
    on_both(
        lambda q, k, v: flash_attn.flash_attn_func(q, k, v, softcap=softcap, alibi_slopes=there),
        lambda q, k, v: capped(q, k, v, softcap, slopes),
        drawn((2, 7, 2, 16), (2, 7, 2, 16), (2, 7, 2, 16)),
    )


def test_the_logarithms_are_those_of_the_sums(session: Session) -> None:
    q, k, v = drawn((1, 6, 2, 16), (1, 6, 2, 16), (1, 6, 2, 16))
    _, lse, none = flash_attn.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), return_attn_probs=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / 4
    torch.testing.assert_close(lse.cpu(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4)
    assert none is None


def test_it_is_one_kernel_and_keeps_no_scores(session: Session) -> None:
    q, k, v = (t.cuda().requires_grad_() for t in drawn(*[(1, 1024, 8, 64)] * 3))
    since, before = len(session.trace), torch.cuda.memory_allocated()
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    names = [row.signature.name for row in session.trace.since(since)]
    assert names == ["aten::_flash_attention_forward"]
    kept = torch.cuda.memory_allocated() - before
    assert kept < out.nbytes + 1024 * 8 * 4 + 4096  # the result, a logarithm a row, and the random state
    since = len(session.trace)
    out.sum().backward()
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("aten::_flash_attention_backward") == 1


@pytest.mark.parametrize("pages", [False, True])
def test_a_cache_grows_as_attention_reads_it(session: Session, pages: bool) -> None:
    batch, size, heads, width = 2, 512, 2, 16
    q, k, v, old_k, old_v = drawn(
        (batch, 3, heads, width), (batch, 3, heads, width), (batch, 3, heads, width),
        (batch, size, heads, width), (batch, size, heads, width),
    )  # fmt: skip
    used = torch.tensor([4, 300], dtype=torch.int32)
    steps = torch.arange(size)[:, None] / 10.0 ** (torch.arange(width // 2) / 4)
    cos, sin = steps.cos().half(), steps.sin().half()
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    caches = [old_k.cuda(), old_v.cuda()]
    if pages:
        caches = []
        for old in (old_k, old_v):
            paged = torch.zeros(4, 256, heads, width, dtype=torch.float16)
            paged[table.flatten().long()] = old.view(4, 256, heads, width)
            caches.append(paged.cuda())
    since = len(session.trace)
    out = flash_attn.flash_attn_with_kvcache(
        q.cuda(), *caches, k.cuda(), v.cuda(), cos.cuda(), sin.cuda(), cache_seqlens=used.cuda(), causal=True,
        rotary_interleaved=False, block_table=table.cuda() if pages else None,
    )  # fmt: skip
    assert "flash_attn::fwd_kvcache" in [row.signature.name for row in session.trace.since(since)]
    for place in range(batch):
        start = int(used[place])

        def turned(x: Tensor, start: int = start) -> Tensor:
            c, s = (t[start : start + 3].float()[:, None] for t in (cos, sin))
            one, two = x.float().chunk(2, -1)
            return torch.cat((one * c - two * s, one * s + two * c), -1)

        keys = torch.cat((old_k[place, :start].float(), turned(k[place])))
        values = torch.cat((old_v[place, :start].float(), v[place].float()))
        wanted = attended(turned(q[place])[None], keys[None], values[None], seen(3, start + 3, True))[0]
        torch.testing.assert_close(out[place].cpu().float(), wanted, rtol=1e-2, atol=5e-3)


def test_padding_goes_and_comes_back(session: Session) -> None:
    (x,) = drawn((3, 5, 8), dtype=torch.float32)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    there = x.cuda().requires_grad_()
    tokens, indices, begins, longest, used = bert_padding.unpad_input(there, mask.cuda())
    assert tokens.cpu().equal(x[mask.bool()])
    assert (begins.tolist(), longest, used.tolist()) == ([0, 3, 4, 9], 5, [3, 1, 5])
    again = bert_padding.pad_input(tokens, indices, 3, 5)
    assert again.cpu().equal(x * mask[..., None])
    again.sum().backward()
    assert there.grad.cpu().equal(mask[..., None].expand_as(x).float())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 3])
def test_rotary_embeddings(session: Session, interleaved: bool, offset: int) -> None:
    (x,) = drawn((2, 6, 3, 12), dtype=torch.float32)
    angles = torch.randn(20, 4)

    def reference(x: Tensor) -> Tensor:
        c, s = (t[offset : offset + 6][:, None] for t in (angles.cos(), angles.sin()))
        given, rest = x[..., :8], x[..., 8:]
        one, two = (given[..., ::2], given[..., 1::2]) if interleaved else given.chunk(2, -1)
        parts = (one * c - two * s, one * s + two * c)
        turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        return torch.cat((turned, rest), -1)

    cos, sin = angles.cos().cuda(), angles.sin().cuda()
    since = len(session.trace)
    on_both(lambda x: rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offset), reference, [x], 1e-5)
    names = [row.signature.name for row in session.trace.since(since)]
    assert names.count("flash_attn::rotary") == 2
    in_place = rotary.apply_rotary_emb(x.cuda(), cos, sin, interleaved, inplace=True, seqlen_offsets=offset)
    torch.testing.assert_close(in_place.cpu(), reference(x))


def test_a_rotary_module_turns_queries_and_keys(session: Session) -> None:
    (qkv,) = drawn((2, 6, 3, 2, 8), dtype=torch.float32)
    module = rotary.RotaryEmbedding(8, device="cuda")
    angles = torch.outer(torch.arange(6.0), 10000 ** (-torch.arange(0, 8, 2) / 8))

    def reference(qkv: Tensor) -> Tensor:
        c, s = angles.cos()[:, None, None], angles.sin()[:, None, None]
        one, two = qkv[:, :, :2].chunk(2, -1)
        turned = torch.cat((one * c - two * s, one * s + two * c), -1)
        return torch.cat((turned, qkv[:, :, 2:]), 2)

    on_both(lambda qkv: module(qkv * 1), reference, [qkv], 1e-5)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norms_of_sums(session: Session, rms: bool, with_residual: bool) -> None:
    x, residual, weight, bias = drawn((4, 6, 32), (4, 6, 32), (32,), (32,), dtype=torch.float32)

    def reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z = x + residual if with_residual else x
        normed = F.rms_norm(z, (32,), weight, 1e-5) + bias if rms else F.layer_norm(z, (32,), weight, bias, 1e-5)
        return normed + 0.5 * z + 0 * residual

    def found(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = residual if with_residual else None
        out, z = triton_norm.layer_norm_fn(x, weight, bias, given, eps=1e-5, prenorm=True, is_rms_norm=rms)
        return out + 0.5 * z + 0 * residual

    on_both(found, reference, [x, residual, weight, bias], 1e-4)
    alone = rms_norm.rms_norm(x.cuda(), weight.cuda(), 1e-5) if rms else None
    if alone is not None:
        torch.testing.assert_close(alone.cpu(), F.rms_norm(x, (32,), weight, 1e-5), rtol=1e-4, atol=1e-5)
    else:
        other = layer_norm.dropout_add_layer_norm(x.cuda(), residual.cuda(), weight.cuda(), bias.cuda(), 0.0, 1e-5)
        wanted = F.layer_norm(x + residual, (32,), weight, bias, 1e-5)
        torch.testing.assert_close(other.cpu(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("square", [0.0, 1e-3])
def test_cross_entropy(session: Session, smoothing: float, square: float) -> None:
    (logits,) = drawn((7, 11), dtype=torch.float32)
    labels = torch.tensor([0, 3, -100, 10, 5, 5, 1])

    def reference(logits: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        squares = square * logits.logsumexp(-1).square() * (labels != -100)
        return losses + squares

    on_both(
        lambda t: cross_entropy_loss(t, labels.cuda(), label_smoothing=smoothing, lse_square_scale=square)[0],
        reference, [logits], 1e-5,
    )  # fmt: skip
    mean = CrossEntropyLoss(label_smoothing=smoothing, inplace_backward=True)(logits.cuda(), labels.cuda())
    torch.testing.assert_close(mean.cpu(), F.cross_entropy(logits, labels, label_smoothing=smoothing))


@pytest.mark.parametrize(
    ("gpu", "change", "message"),
    [
        ("V100", {}, "FlashAttention only supports Ampere GPUs or newer."),
        ("A100", {"dtype": torch.float32}, "FlashAttention only support fp16 and bf16 data type"),
        ("A100", {"width": 264}, "FlashAttention forward only supports head dimension at most 256"),
        ("A100", {"heads": 3}, "Number of heads in key/value must divide number of heads in query"),
    ],
)
def test_what_the_library_refuses(gpu: str, change: dict[str, object], message: str) -> None:
    told = {"dtype": torch.float16, "width": 16, "heads": 4, **change}
    with windtunnel.emulate(gpu):
        q = torch.ones(1, 4, 4, told["width"], dtype=told["dtype"], device="cuda")  # type: ignore[arg-type]
        k = torch.ones(1, 4, told["heads"], told["width"], dtype=told["dtype"], device="cuda")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=message):
            flash_attn.flash_attn_func(q, k, k)


def test_what_the_stand_in_does_not_answer(session: Session) -> None:
    q = torch.ones(1, 4, 4, 16, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="Softcapping does not support dropout for now"):
        flash_attn.flash_attn_func(q, q, q, 0.1, softcap=2.0)
    with pytest.raises(UnsupportedError, match="does not answer return_attn_probs with dropout"):
        flash_attn.flash_attn_func(q, q, q, 0.1, return_attn_probs=True)
    with pytest.raises(UnsupportedError, match="a fused norm with dropout_p: compute it before the norm"):
        triton_norm.layer_norm_fn(q, q[0, 0, 0], None, dropout_p=0.1)
    with pytest.raises(MissingNameError, match=r"flash_attn\.bert_padding\.pad_everything is not in"):
        bert_padding.pad_everything  # noqa: B018
    for name in ("flash_attn_interface", "layers.rotary", "ops.rms_norm", "ops.layer_norm", "losses.cross_entropy"):
        module = importlib.import_module(f"windtunnel.libraries.flash_attn.{name}")
        with pytest.raises(MissingNameError, match="is not in windtunnel's stand-in for flash_attn"):
            module.nothing  # noqa: B018


def test_its_extension_is_there_for_those_who_look(session: Session) -> None:
    """Unsloth imports it, and takes the library for broken where it is not there."""
    extension = flash_attn.flash_attn_interface.flash_attn_gpu
    with pytest.raises(MissingNameError, match=r"flash_attn_2_cuda\.fwd"):
        extension.fwd()


def test_dropout_follows_the_devices_generator(session: Session) -> None:
    q = torch.ones(1, 32, 2, 16, dtype=torch.float16, device="cuda")
    v = torch.eye(32, 16, dtype=torch.float16, device="cuda")[None, :, None].expand(1, 32, 2, 16).contiguous()
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(flash_attn.flash_attn_func(q, q, v, 0.5))
    assert found[0].cpu().equal(found[1].cpu())
    assert not found[0].cpu().equal(flash_attn.flash_attn_func(q, q, v, 0.5).cpu())


def test_without_data_it_takes_the_same_memory() -> None:
    peaks = []
    for no_data in (False, True):
        with windtunnel.emulate("A100", no_data=no_data):
            q, k, v = (
                torch.ones(2, 128, 4, 64, dtype=torch.bfloat16, device="cuda").requires_grad_() for _ in range(3)
            )
            out = flash_attn.flash_attn_func(q, k, v, causal=True)
            y = triton_norm.rms_norm_fn(out, torch.ones(64, device="cuda", dtype=torch.bfloat16), None)
            y.float().sum().backward()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_shapes_that_do_not_fit_are_refused_as_the_library_does(session: Session) -> None:
    def ends(*places: int) -> Tensor:
        return torch.tensor(places, dtype=torch.int32, device="cuda")

    q, k = (torch.ones(tokens, heads, 64, dtype=torch.float16, device="cuda") for tokens, heads in ((2, 9), (8, 3)))
    attention = flash_attn.flash_attn_varlen_func
    with pytest.raises(RuntimeError, match=r"shape '\[3, 3, 3, 64\]' is invalid for input of size 1152"):
        attention(q, k, k, ends(0, 1, 1, 2), ends(0, 3, 3, 8), 1, 5, causal=True)
    assert attention(q, k, k, ends(0, 1, 2), ends(0, 3, 8), 1, 5, causal=True).shape == q.shape
    with pytest.raises(RuntimeError, match=r"cu_seqlens_k must have shape \(batch_size \+ 1\)"):
        attention(q, k, k, ends(0, 1, 2), ends(0, 3, 3, 8), 2, 5)
    with pytest.raises(RuntimeError, match=r"v must have shape \(total_k, num_heads_k, head_size\)"):
        attention(q, k, k[:, :1], ends(0, 1, 2), ends(0, 3, 8), 2, 5)
    with pytest.raises(RuntimeError, match="cu_seqlens_q must be on CUDA"):
        attention(q, k, k, ends(0, 1, 2).cpu(), ends(0, 3, 8), 2, 5)
    batch = torch.ones(1, 8, 2, 64, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="must have a head_size that is a multiple of 8"):
        attention(batch, batch, batch, ends(0, 4, 8), ends(0, 4, 8), 4, 4)
    with pytest.raises(RuntimeError, match=r"q must have shape \(total_q, num_heads, head_size\)"):
        attention(*[batch.mT.contiguous().view(1, 2, 8, 64)] * 3, ends(0, 4, 8), ends(0, 4, 8), 4, 4)
    with pytest.raises(RuntimeError, match=r"k must have shape \(batch_size, seqlen_k, num_heads_k, head_size\)"):
        flash_attn.flash_attn_func(q[None], k.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1))


def test_texts_of_several_lengths_make_nobody_wait(session: Session) -> None:
    q = torch.randn(6, 2, 16, device="cuda", dtype=torch.float16)
    begins = torch.tensor([0, 2, 6], dtype=torch.int32, device="cuda")
    direct = flash_attn.flash_attn_varlen_func(q, q, q, begins, begins, 4, 4, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn.flash_attn_varlen_func(q, q, q, begins, begins, 4, 4, causal=True)
    graph.replay()
    assert torch.equal(out, direct)
    begins.copy_(torch.tensor([0, 4, 6], dtype=torch.int32))
    graph.replay()
    assert torch.equal(out, flash_attn.flash_attn_varlen_func(q, q, q, begins, begins, 4, 4, causal=True))
    assert not torch.equal(out, direct)


@pytest.mark.parametrize("causal", [False, True])
def test_its_kernels_by_themselves_make_a_ring(session: Session, causal: bool) -> None:
    """ring-flash-attention and diffusers call them: a part of the keys, with the logarithms of all of them."""
    leaves = [tensor.float().requires_grad_() for tensor in drawn((2, 16, 4, 20), (2, 16, 2, 20), (2, 16, 2, 20))]
    (weights,) = drawn((2, 16, 4, 20), seed=1)
    expected = attended(*leaves, seen(16, 16, causal))
    (expected * weights).sum().backward()
    q, k, v = (tensor.detach().half().cuda() for tensor in leaves)
    library = importlib.import_module("windtunnel.libraries.flash_attn.flash_attn_interface")
    told = 20**-0.5, causal, -1, -1, 0.0, None
    out, lse, nothing, random = library._wrapped_flash_attn_forward(q, k, v, 0.0, *told, False)
    assert (out.shape[-1], lse.shape, nothing.numel()) == (24, (2, 4, 16), 0)  # padded, as the library gives it
    torch.testing.assert_close(out[..., :20].cpu().float(), expected.detach(), rtol=1e-2, atol=4e-3)
    parts = []
    for keys in (slice(None),) if causal else (slice(8), slice(8, None)):
        given = q, k[:, keys], v[:, keys]
        places = [torch.empty_like(tensor) for tensor in given]
        rows = library._flash_attn_backward(weights.cuda(), *given, out, lse, *places, 0.0, *told, False, random)
        assert rows.shape == (2, 4, 128)
        parts.append([place.cpu().float() for place in places])
    found = [sum(part[0] for part in parts), *(torch.cat([part[i] for part in parts], 1) for i in (1, 2))]
    for one, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(one, leaf.grad, rtol=2e-2, atol=2e-2)


def test_its_kernels_by_themselves_take_texts_of_several_lengths(session: Session) -> None:
    library = importlib.import_module("windtunnel.libraries.flash_attn.flash_attn_interface")
    tensors = [tensor.cuda().requires_grad_() for tensor in drawn((16, 2, 16), (16, 2, 16), (16, 2, 16))]
    (weights,) = [tensor.cuda() for tensor in drawn((16, 2, 16), seed=1)]
    begins = torch.tensor([0, 5, 6, 16], dtype=torch.int32, device="cuda")
    texts = begins, begins, 10, 10
    expected = flash_attn.flash_attn_varlen_func(*tensors, *texts, causal=True)
    expected.backward(weights)
    told = 0.25, True, -1, -1, 0.0, None
    q, k, v = (tensor.detach() for tensor in tensors)
    out, lse, _, random = library._flash_attn_varlen_forward(q, k, v, *texts, 0.0, *told)
    torch.testing.assert_close(out, expected.detach())
    places = [torch.empty_like(tensor) for tensor in tensors]
    library._flash_attn_varlen_backward(weights, q, k, v, out, lse, *places, *texts, 0.0, *told, False, random)
    for place, tensor in zip(places, tensors, strict=True):
        torch.testing.assert_close(place, tensor.grad)
