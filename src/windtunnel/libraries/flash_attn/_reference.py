"""Attention by its definition, in float32: for what PyTorch's own flash attention has no argument."""

from __future__ import annotations

import math

import torch

from windtunnel.described import kernel

Tensor = torch.Tensor
SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, float scale, bool causal, int left, int right, float softcap, "
    "Tensor? alibi_slopes=None, Tensor? used=None, Tensor? block_table=None, Tensor? rows=None) -> (Tensor, Tensor)"
)


def visible(queries: int, keys: int, causal: bool, left: int, right: int) -> Tensor:
    """[queries, keys]: what each query sees, aligned at the last query and the last key."""
    ends = torch.arange(queries, device="cpu")[:, None] + keys - queries
    place = torch.arange(keys, device="cpu")
    last = 0 if causal else right
    seen = torch.ones(queries, keys, dtype=torch.bool, device="cpu")
    if last >= 0:
        seen &= place <= ends + last
    if left >= 0:
        seen &= place >= ends - left
    return seen


def attended(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, left: int, right: int, softcap: float,
    slopes: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Results [queries, heads, width] and logarithms [heads, queries] of one text, [tokens, heads, width] each."""
    repeat = q.shape[1] // k.shape[1]
    wide = [t.float().repeat_interleave(repeat, 1) if t is not q else t.float() for t in (q, k, v)]
    scores = torch.einsum("qhd,khd->hqk", wide[0], wide[1]) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = scores.shape[1:]
    if slopes is not None:
        ends = torch.arange(queries, device="cpu")[:, None] + keys - queries
        scores = scores - slopes[:, None, None] * (ends - torch.arange(keys, device="cpu")).abs()
    scores = scores.masked_fill(~visible(queries, keys, causal, left, right), -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    return torch.einsum("hqk,khd->qhd", weights, wide[2]).to(q.dtype), lse.masked_fill(lse.isneginf(), math.inf)


@kernel("flash_attn::by_definition", like="aten::_flash_attention_forward", define=SCHEMA)
def by_definition(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, left: int, right: int, softcap: float,
    alibi_slopes: Tensor | None = None, used: Tensor | None = None, block_table: Tensor | None = None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[batch, tokens, heads, width] of queries and of keys and values, or of pages of these; `used` keys of each."""
    batch, queries, heads = q.shape[:3]
    if q.is_meta:
        return torch.empty_like(q), torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    found = []
    for place in range(batch):
        at = place if rows is None else int(rows[place])
        if block_table is not None:
            keys, values = (t[block_table[place].long()].flatten(0, 1) for t in (k, v))
        else:
            keys, values = k[at], v[at]
        count = keys.shape[0] if used is None else int(used[place])
        slopes = alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[place]
        found.append(attended(q[place], keys[:count], values[:count], scale, causal, left, right, softcap, slopes))
    return torch.stack([out for out, _ in found]), torch.stack([lse for _, lse in found])
