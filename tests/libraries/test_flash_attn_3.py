"""The stand-in for flash_attn 3, beside scaled dot-product attention."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import windtunnel
from helpers.on_both import drawn, on_both
from windtunnel import libraries
from windtunnel.errors import MissingNameError, UnsupportedError
from windtunnel.libraries import flash_attn_interface
from windtunnel.session import Session

Tensor = torch.Tensor


@pytest.fixture
def session() -> Iterator[Session]:
    with windtunnel.emulate("H100") as session:
        yield session


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[batch, tokens, heads, width], with fewer heads of keys and values."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_pytorch(session: Session, causal: bool) -> None:
    tensors = drawn((2, 9, 4, 32), (2, 9, 2, 32), (2, 9, 2, 32))
    mask = torch.ones(9, 9, dtype=torch.bool).tril() if causal else None
    on_both(
        lambda q, k, v: flash_attn_interface.flash_attn_func(q, k, v, causal=causal),
        lambda q, k, v: attended(q, k, v, mask),
        tensors,
    )


def test_packed_heads_and_texts(session: Session) -> None:
    (qkv,) = drawn((2, 8, 3, 4, 32))
    q, k, v = qkv.float().unbind(2)
    wanted = attended(q, k, v)
    for packed, heads in ((qkv, None), (qkv.flatten(2, 3), 4)):
        found = flash_attn_interface.flash_attn_qkvpacked_func(packed.cuda(), num_heads_q=heads)
        torch.testing.assert_close(found.cpu().float(), wanted, rtol=1e-2, atol=4e-3)
    ends = torch.tensor([0, 8, 16], dtype=torch.int32, device="cuda")
    texts = [one.flatten(0, 1).half().cuda() for one in (q, k, v)]
    found, lse = flash_attn_interface.flash_attn_varlen_func(*texts, ends, ends, 8, 8, return_attn_probs=True)
    torch.testing.assert_close(found.cpu().float(), wanted.flatten(0, 1), rtol=1e-2, atol=4e-3)
    assert lse.shape == (4, 16)


def test_a_cache_in_small_pages(session: Session) -> None:
    q, k, v = drawn((2, 1, 4, 32), (8, 4, 2, 32), (8, 4, 2, 32))
    table = torch.tensor([[1, 3, 5], [0, 2, 7]], dtype=torch.int32)
    used = torch.tensor([9, 12], dtype=torch.int32)
    there = [one.cuda() for one in (q, k, v)]
    found = flash_attn_interface.flash_attn_with_kvcache(
        *there, cache_seqlens=used.cuda(), page_table=table.cuda(), causal=True
    )
    for text in range(2):
        keys, values = (one[table[text].long()].flatten(0, 1)[: used[text]][None].float() for one in (k, v))
        wanted = attended(q[text : text + 1].float(), keys, values)[0]
        torch.testing.assert_close(found[text].cpu().float(), wanted, rtol=1e-2, atol=4e-3)


def test_what_is_refused(session: Session) -> None:
    q = torch.ones(1, 4, 2, 32, dtype=torch.float16, device="cuda")
    attention = flash_attn_interface.flash_attn_func
    with pytest.raises(UnsupportedError, match=r"flash_attn_3 3\.0\.0 does not answer flash_attn_func with q_descale"):
        attention(q, q, q, q_descale=torch.ones(1, 2, device="cuda"))
    with pytest.raises(UnsupportedError, match="with attention_chunk"):
        attention(q, q, q, attention_chunk=128)
    with pytest.raises(RuntimeError, match="head_size should be a multiple of 8"):
        attention(*[q[..., :20].contiguous()] * 3)
    with pytest.raises(RuntimeError, match="FlashAttention only support fp16 and bf16 data type"):
        attention(*[q.float()] * 3)
    with pytest.raises(MissingNameError, match=r"--without flash_attn_interface"):
        flash_attn_interface.flash_attn_combine  # noqa: B018


def test_gpus_after_hopper_have_no_kernel() -> None:
    with windtunnel.emulate("B200"):
        q = torch.ones(1, 4, 2, 32, dtype=torch.float16, device="cuda")
        with pytest.raises(RuntimeError, match="no kernel image is available for execution on the device"):
            flash_attn_interface.flash_attn_func(q, q, q)


def test_its_distribution_has_another_name() -> None:
    finder = libraries.Finder(lambda library: None)
    context = importlib.metadata.DistributionFinder.Context(name="flash-attn-3")
    (found,) = finder.find_distributions(context)
    assert (found.metadata["Name"], found.version) == ("flash_attn_3", "3.0.0")
    assert found.read_text("top_level.txt") == "flash_attn_3\nflash_attn_interface\n"
    assert not list(finder.find_distributions(importlib.metadata.DistributionFinder.Context(name="flash_attn_inter")))


def test_programs_look_for_its_binary_and_find_none() -> None:
    finder = libraries.offer(lambda library: None)
    try:
        assert importlib.util.find_spec("flash_attn_3") is not None
        assert importlib.util.find_spec("flash_attn_3._C") is None
    finally:
        libraries.withdraw(finder)
        sys.modules.pop("flash_attn_3", None)
