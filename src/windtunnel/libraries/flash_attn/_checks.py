"""What csrc/flash_attn/flash_api.cpp refuses, in its words."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)
WIDEST = 256


def require(holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(text)


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Of queries, keys and values."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require(tensor.is_cuda, f"{name} must be on CUDA")
    newer = torch.cuda.get_device_capability(q.device) >= (8, 0)
    require(newer, "FlashAttention only supports Ampere GPUs or newer.")
    require(q.dtype in HALVES, "FlashAttention only support fp16 and bf16 data type")
    require(k.dtype is q.dtype, "query and key must have the same dtype")
    require(v.dtype is q.dtype, "query and value must have the same dtype")
    for tensor in (q, k, v):
        require(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    require(q.shape[0] > 0, "batch size must be positive")
    require(q.shape[-1] <= WIDEST, "FlashAttention forward only supports head dimension at most 256")
    divides = q.shape[-2] % k.shape[-2] == 0
    require(divides, "Number of heads in key/value must divide number of heads in query")


def check_slopes(slopes: Tensor | None, q: Tensor) -> None:
    """Of ALiBi's slopes."""
    if slopes is None:
        return
    require(slopes.dtype is torch.float32, "ALiBi slopes must have dtype fp32")
    shapes = ((q.shape[2],), (q.shape[0], q.shape[2]))
    require(tuple(slopes.shape) in shapes, "alibi_slopes must have shape (nheads) or (batch_size, nheads)")


def check_texts(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, most_q: int, swaps: bool) -> None:
    """Of [all tokens, heads, width] and where texts begin; where it `swaps`, one query of each text is its heads."""
    for name, lengths in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        require(lengths.dtype is torch.int32, f"{name} must have dtype int32")
        require(lengths.is_cuda, f"{name} must be on CUDA")
        require(lengths.is_contiguous(), f"{name} must be contiguous")
    batch, heads, width, fewer = cu_q.numel() - 1, q.shape[1], q.shape[2], k.shape[1]
    if q.dim() > 3:
        require(width % 8 == 0, "query, key, value, and out_ must have a head_size that is a multiple of 8")
        require(q.dim() == 3, "q must have shape (total_q, num_heads, head_size)")
    if most_q == 1 and heads > fewer and swaps and width % 8 == 0:
        shape = [batch, fewer, heads // fewer, width]
        fits = q.shape[0] == batch
        require(fits, f"shape '{shape}' is invalid for input of size {q.numel()}")
    for name, tensor in (("k", k), ("v", v)):
        fits = tuple(tensor.shape) == (k.shape[0], fewer, width)
        require(fits, f"{name} must have shape (total_k, num_heads_k, head_size)")
    for name, lengths in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        require(tuple(lengths.shape) == (batch + 1,), f"{name} must have shape (batch_size + 1)")


def check_batch(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Of [batch, tokens, heads, width]."""
    for name, tensor in (("k", k), ("v", v)):
        fits = tuple(tensor.shape) == (q.shape[0], *k.shape[1:3], q.shape[3])
        require(fits, f"{name} must have shape (batch_size, seqlen_k, num_heads_k, head_size)")
