"""`flash_attn_with_kvcache`: one kernel that writes new keys and values, turns them, and attends over the cache."""

from __future__ import annotations

import math

import torch

from windtunnel.described import kernel
from windtunnel.libraries import unanswered
from windtunnel.libraries._flash import bounded

from ._checks import check, check_slopes, require
from ._reference import by_definition
from .layers._rotated import rotated

LIBRARY = "flash_attn 2.8.3"
Tensor = torch.Tensor
SCHEMA = (
    "(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, Tensor? cos, Tensor? sin, Tensor used, "
    "Tensor? rows, Tensor? block_table, float scale, bool causal, int left, int right, float softcap, "
    "bool interleaved, Tensor? alibi_slopes) -> (Tensor, Tensor)"
)


@kernel("flash_attn::fwd_kvcache", like="aten::_flash_attention_forward", define=SCHEMA)
def fwd_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, cos: Tensor | None,
    sin: Tensor | None, used: Tensor, rows: Tensor | None, block_table: Tensor | None, scale: float, causal: bool,
    left: int, right: int, softcap: float, interleaved: bool, alibi_slopes: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The values of the kernel, with the cache changed."""
    batch, queries, heads = q.shape[:3]
    if q.is_meta:
        return torch.empty_like(q), torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    total = used.clone()
    if k is not None and v is not None:
        if cos is not None and sin is not None:
            k = rotated(k, cos, sin, used, interleaved)
            q = rotated(q, cos, sin, used, interleaved, moves=causal or left >= 0 or right >= 0)
        for place in range(batch):
            for token in range(k.shape[1]):
                at = int(used[place]) + token
                if block_table is not None:
                    size = k_cache.shape[1]
                    row, at = int(block_table[place, at // size]), at % size
                else:
                    row = place if rows is None else int(rows[place])
                k_cache[row, at] = k[place, token]
                v_cache[row, at] = v[place, token]
        total = total + k.shape[1]
    return by_definition(
        q, k_cache, v_cache, scale, causal, left, right, softcap, alibi_slopes, total, block_table, rows
    )


def attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, cos: Tensor | None,
    sin: Tensor | None, used: int | Tensor | None, rows: Tensor | None, leftpad: Tensor | None,
    block_table: Tensor | None, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    interleaved: bool, slopes: Tensor | None, with_lse: bool, page: int = 256,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Check a call as csrc/flash_attn/flash_api.cpp does, and launch the kernel; pages are multiples of `page`."""
    if leftpad is not None:
        unanswered(LIBRARY, "flash_attn_with_kvcache with cache_leftpad", "give the cache without padding on its left")
    check(q, k_cache, v_cache)
    check_slopes(slopes, q)
    require(q.shape[-1] % 8 == 0, "head_size should be a multiple of 8")
    if block_table is not None:
        require(rows is None, "Paged KVcache does not support cache_batch_idx")
        require(block_table.dtype is torch.int32, "block_table must have dtype torch.int32")
        require(k_cache.shape[1] % page == 0, f"Paged KV cache block size must be divisible by {page}")
    if k is not None:
        require(v is not None, "If key is supplied, value must also be passed in")
        require(used is not None, "If key is supplied, seqlens_k must also be passed in")
    if cos is not None:
        require(
            k is not None,
            "If rotary cos/sin are provided, new key / value to be appended to KV cache must also be provided",
        )
    if used is None:
        used = k_cache.shape[1]
    if isinstance(used, int):
        used = torch.full((q.shape[0],), used, dtype=torch.int32, device=q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    out, lse = torch.ops.flash_attn.fwd_kvcache(
        q, k_cache, v_cache, k, v, cos, sin, used, rows, block_table, scale, causal, *bounded(window, causal), softcap,
        interleaved, slopes,
    )  # fmt: skip
    return (out, lse) if with_lse else out
