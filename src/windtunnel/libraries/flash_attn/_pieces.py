"""The forward and backward kernels alone, with which ring attention and diffusers make functions of their own.

The library writes gradients where it is told; here they are copied there, which is a kernel more for each.
"""

from __future__ import annotations

import torch

from windtunnel.libraries import unanswered
from windtunnel.libraries._flash import aten, bounded, padded

from ._checks import check, check_batch, check_texts, require

LIBRARY = "flash_attn 2.8.3"
Tensor = torch.Tensor
Kept = tuple[Tensor, Tensor, Tensor, Tensor]


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _only_plain(softcap: float, slopes: Tensor | None) -> None:
    if softcap or slopes is not None:
        unanswered(LIBRARY, "its forward and backward kernels by themselves with softcap or alibi_slopes")


def _told(scale: float, causal: bool, left: int, right: int) -> dict[str, Tensor | float | int | None]:
    sides = [None if side < 0 else side for side in bounded((left, right), causal)]
    return {"scale": scale, "window_size_left": sides[0], "window_size_right": sides[1]}


@torch.no_grad()
def _forward(
    q: Tensor, k: Tensor, v: Tensor, texts: tuple[Tensor | None, Tensor | None, int, int], p: float, causal: bool,
    probabilities: bool, told: dict[str, Tensor | float | int | None],
) -> Kept:  # fmt: skip
    if probabilities and p:
        unanswered(LIBRARY, "return_softmax with dropout", "its third result is the kernel's own pattern of dropout")
    q, k, v = padded(q), padded(k), padded(v)
    out, lse, random, *_ = aten._flash_attention_forward(q, k, v, *texts, p, causal, False, **told)
    return out, lse, q.new_empty(0), random


def flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
) -> Kept:  # fmt: skip
    """Result, logarithms [batch, heads, queries], no probabilities, and the state of the random numbers."""
    _only_plain(softcap, alibi_slopes)
    q, k, v = map(_contiguous, (q, k, v))
    check(q, k, v)
    check_batch(q, k, v)
    told = _told(softmax_scale, causal, window_size_left, window_size_right)
    return _forward(q, k, v, (None, None, q.shape[1], k.shape[1]), dropout_p, causal, return_softmax, told)


def flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
    block_table: Tensor | None = None, leftpad_k: Tensor | None = None, seqused_k: Tensor | None = None,
) -> Kept:  # fmt: skip
    """The same of texts of several lengths, whose logarithms are [heads, all tokens]."""
    _only_plain(softcap, alibi_slopes)
    if block_table is not None or leftpad_k is not None:
        unanswered(LIBRARY, "_flash_attn_varlen_forward with block_table or leftpad_k")
    q, k, v = map(_contiguous, (q, k, v))
    check(q, k, v)
    swaps = not dropout_p and (window_size_left, window_size_right) == (-1, -1)
    check_texts(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, swaps)
    told = _told(softmax_scale, causal, window_size_left, window_size_right)
    texts = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return _forward(q, k, v, texts, dropout_p, causal, return_softmax, {**told, "seqused_k": seqused_k})


@torch.no_grad()
def _backward(
    given: tuple[Tensor, ...], lse: Tensor, wanted: tuple[Tensor | None, ...],
    texts: tuple[Tensor | None, Tensor | None, int, int], p: float, causal: bool, random: Tensor | None,
    told: dict[str, Tensor | float | int | None],
) -> Tensor:  # fmt: skip
    require(not p or random is not None, "rng_state must be given with dropout")
    dout, q, k, v, out = map(_contiguous, given)
    if random is None:
        random = torch.zeros(2, dtype=torch.uint64, device=q.device)
    unused = torch.empty(0, dtype=torch.uint64, device=q.device)
    dout, q, k, v, out = (padded(one) for one in (dout, q, k, v, out))
    found = aten._flash_attention_backward(dout, q, k, v, out, lse, *texts, p, causal, random, unused, **told)
    for place, part in zip(wanted, found, strict=True):
        if place is not None:
            place.copy_(part[..., : place.shape[-1]])
    rows = -(-lse.shape[-1] // 128) * 128 if lse.dim() == 3 else lse.shape[-1] + 128 * (len(texts[0]) - 1)  # type: ignore[arg-type]
    return lse.new_empty((*lse.shape[:-1], rows))


def flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Writes the gradients; `out` and `softmax_lse` may be those of more keys than these."""
    _only_plain(softcap, alibi_slopes)
    check(q, k, v)
    told = _told(softmax_scale, causal, window_size_left, window_size_right)
    texts = None, None, q.shape[1], k.shape[1]
    return _backward(
        (dout, q, k, v, out), softmax_lse, (dq, dk, dv), texts, dropout_p, causal, rng_state, told
    )  # fmt: skip


def flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same of texts of several lengths."""
    _only_plain(softcap, alibi_slopes)
    check(q, k, v)
    told = _told(softmax_scale, causal, window_size_left, window_size_right)
    texts = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return _backward(
        (dout, q, k, v, out), softmax_lse, (dq, dk, dv), texts, dropout_p, causal, rng_state, told
    )  # fmt: skip
