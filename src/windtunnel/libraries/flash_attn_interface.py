"""flash_attn 3, whose module is `flash_attn_interface` (distribution flash_attn_3): on Ampere, Ada and Hopper.

`flash_attn_func`, `flash_attn_varlen_func`, `flash_attn_qkvpacked_func` and `flash_attn_with_kvcache`, with windows,
softcapping, groups of heads and pages of a cache, computed and kept as flash_attn 2 does it. Numbers of 8 bits
(`q_descale` and its kin), `qv`, `attention_chunk`, `seqused_q` and `seqused_k`, left padding and new keys of texts of
several lengths are refused; GPUs after Hopper have no kernel of it.

Source of the interface: Dao-AILab/flash-attention, hopper/flash_attn_interface.py; of what it refuses,
hopper/flash_api.cpp. Its time is that of PyTorch's flash attention: nothing near its own was measured.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.libraries import refuse, unanswered
from windtunnel.libraries.flash_attn import _cache
from windtunnel.libraries.flash_attn import flash_attn_interface as second

__version__ = "3.0.0"
DISTRIBUTION = "flash_attn_3"
__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

LIBRARY = f"{DISTRIBUTION} {__version__}"
Tensor = torch.Tensor
Window = tuple[int, int]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "flash_attn_interface", name)


def _check(function: str, q: Tensor, **others: object) -> None:
    """What the library refuses beyond flash_attn 2, and what is not answered of its arguments."""
    for name, value in others.items():
        if value is not None and (isinstance(value, Tensor) or value != 0):
            unanswered(LIBRARY, f"{function} with {name}")
    if q.dtype is torch.float8_e4m3fn:
        unanswered(LIBRARY, f"{function} of numbers of 8 bits", "give them in 16 bits")
    if q.is_cuda and torch.cuda.get_device_capability(q.device) >= (10, 0):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    if q.shape[-1] % 8:
        raise RuntimeError("head_size should be a multiple of 8")


def _result(found: Tensor | tuple[Tensor, ...], probabilities: bool) -> Tensor | tuple[Tensor, Tensor]:
    """The result, with the logarithms where they were asked for."""
    return (found[0], found[1]) if probabilities else found  # type: ignore[return-value]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over [batch, tokens, heads, width]; keys and values may have fewer heads."""
    _check("flash_attn_func", q, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
           attention_chunk=attention_chunk)  # fmt: skip
    told = 0.0, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs
    return _result(second.flash_attn_func(q, k, v, *told), return_attn_probs)  # type: ignore[arg-type]


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The same of [batch, tokens, 3, heads, width], or of [batch, tokens, all heads, width] with `num_heads_q`."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    else:
        assert num_heads_q is not None
        fewer = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, fewer, fewer), 2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over [all tokens, heads, width], in which each text begins where `cu_seqlens` says."""
    _check("flash_attn_varlen_func", q, seqused_q=seqused_q, seqused_k=seqused_k, qv=qv, q_descale=q_descale,
           k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)  # fmt: skip
    texts = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    told = 0.0, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs
    return _result(second.flash_attn_varlen_func(q, k, v, *texts, *told), return_attn_probs)  # type: ignore[arg-type]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over a cache, into which new keys and values are written first; pages where there is a table."""
    _check("flash_attn_with_kvcache", q, qv=qv, cache_leftpad=cache_leftpad, cu_seqlens_q=cu_seqlens_q,
           cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens, q_descale=q_descale, k_descale=k_descale,
           v_descale=v_descale, attention_chunk=attention_chunk)  # fmt: skip
    return _cache.attend(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, None, page_table,
        softmax_scale, causal, window_size, softcap, rotary_interleaved, None,
        return_softmax_lse, page=1,
    )  # fmt: skip
