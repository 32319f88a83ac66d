"""`flash_attn.flash_attn_interface`: attention by PyTorch's own flash kernels, saving what the library saves."""

from __future__ import annotations

import math
from typing import NoReturn

import torch

from windtunnel.libraries import refuse, unanswered
from windtunnel.libraries._flash import attention, bounded

from ._cache import attend as _attend_cached
from ._checks import check as _check
from ._checks import check_batch as _check_batch
from ._checks import check_slopes as _slopes
from ._checks import check_texts as _check_texts
from ._checks import require as _require
from ._pieces import flash_attn_backward as _flash_attn_backward
from ._pieces import flash_attn_forward as _flash_attn_forward
from ._pieces import flash_attn_varlen_backward as _flash_attn_varlen_backward
from ._pieces import flash_attn_varlen_forward as _flash_attn_varlen_forward
from ._reference import by_definition as _by_definition  # noqa: F401  # which defines the operator

LIBRARY = "flash_attn 2.8.3"
Tensor = torch.Tensor
Window = tuple[int, int]
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "flash_attn.flash_attn_interface", name)


class _Extension:
    """The library's extension in C++, which programs import to see whether it loads: its functions are refused."""

    def __getattr__(self, name: str) -> NoReturn:
        refuse(LIBRARY, "flash_attn_2_cuda", name)


flash_attn_gpu = _Extension()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, p: float, scale: float | None, causal: bool, window: Window, softcap: float,
    slopes: Tensor | None, probabilities: bool, lengths: tuple[Tensor, Tensor, int, int] | None = None,
) -> Tensor | tuple[Tensor, Tensor, None]:  # fmt: skip
    _check(q, k, v)
    if lengths is None:
        _check_batch(q, k, v)
    else:
        swaps = not p and slopes is None and tuple(window) == (-1, -1)
        _check_texts(q, k, v, *lengths[:3], swaps)
    if probabilities and p:
        unanswered(LIBRARY, "return_attn_probs with dropout", "its third result is the kernel's own pattern of dropout")
    if softcap > 0.0:
        _require(p == 0.0, "Softcapping does not support dropout for now")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    window = bounded(window, causal)
    if softcap > 0.0 or slopes is not None:
        if p or lengths is not None:
            what = "dropout" if p else "texts of several lengths"
            unanswered(LIBRARY, f"{what} together with softcap or alibi_slopes", "leave one of them out")
        _slopes(slopes, q)
        # The reference's logarithms are results, which autograd may differentiate; the library's are not.
        out, lse = torch.ops.flash_attn.by_definition(q, k, v, scale, causal, *window, softcap, slopes)
        lse = lse.detach()
    else:
        cu_q, cu_k, most_q, most_k = lengths or (None, None, q.shape[1], k.shape[1])
        out, lse = attention(q, k, v, cu_q, cu_k, most_q, most_k, p, scale, causal, window)
    return (out, lse, None) if probabilities else out


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Attention over [batch, tokens, heads, width]; keys and values may have fewer heads."""
    return _attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """The same of [batch, tokens, 3, heads, width]."""
    q, k, v = qkv.unbind(2)
    return _attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """The same with keys and values in [batch, tokens, 2, heads, width]."""
    k, v = kv.unbind(2)
    return _attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Attention over [all tokens, heads, width], in which each text begins where `cu_seqlens` says."""
    if block_table is not None:
        unanswered(LIBRARY, "flash_attn_varlen_func with block_table", "flash_attn_with_kvcache answers pages")
    texts = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    return _attend(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, texts
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """The same of [all tokens, 3, heads, width]."""
    q, k, v = qkv.unbind(1)
    told = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *told)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """The same with keys and values in [all tokens, 2, heads, width]."""
    k, v = kv.unbind(1)
    told = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *told)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over a cache, into which new keys and values are written first; pages where there is a block table."""
    return _attend_cached(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
        softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes,
        return_softmax_lse,
    )  # fmt: skip
