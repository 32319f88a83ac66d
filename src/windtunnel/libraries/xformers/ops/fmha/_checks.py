"""What xformers refuses before it launches a kernel, in its words (validate_inputs and _check_bias_alignment)."""

from __future__ import annotations

import torch

from windtunnel.libraries import unanswered

from .attn_bias import BlockDiagonalMask, LowerTriangularMask

LIBRARY = "xformers 0.0.31"
Tensor = torch.Tensor
NAME = "memory_efficient_attention_forward"


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"  query.shape: {query.shape}\n  key.shape  : {key.shape}\n  value.shape: {value.shape}"


def validate(query: Tensor, key: Tensor, value: Tensor, bias: object, p: float) -> None:
    """Raise what the library does of shapes, types and biases that do not fit.

    Raises:
        ValueError: shapes and types.
        NotImplementedError: a bias whose rows do not lie at multiples of 16 bytes.
    """
    shapes = _shapes(query, key, value)
    if any(one.dtype is not query.dtype for one in (key, value)):
        raise ValueError(
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should have "
            f"dtype torch.int32\n  query.dtype: {query.dtype}\n  key.dtype  : {key.dtype}\n  value.dtype: {value.dtype}"
        )
    if query.dim() == 3 and not (bias is None or type(bias) in (LowerTriangularMask, Tensor, torch.nn.Parameter)):
        kind = type(bias).__name__
        raise ValueError(f"Please provide inputs in BMHK format rather than BMK when using bias type `{kind}`")
    if query.dim() == 4 and isinstance(bias, Tensor):
        expected = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        if tuple(bias.shape) != expected:
            raise ValueError(f"Invalid shape for attention bias: {bias.shape} (expected {expected})\n{shapes}")
    if isinstance(bias, BlockDiagonalMask) and any(one.shape[0] != 1 for one in (query, key, value)):
        raise ValueError(f"Expected batch_size=1 when using block-diagonal bias\n{shapes}")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"Invalid dropout probability: p={p}")
    batch, middle = key.shape[0], query.shape[2:-1]
    fits = query.shape[0] == batch and key.shape[2:] == query.shape[2:]
    if not fits or value.shape[:2] != key.shape[:2] or value.shape[2:-1] != middle:
        raise ValueError(
            f"Incompatible shapes for attention inputs:\n{shapes}\nHINT: We don't support broadcasting, please use "
            "`expand` yourself before calling `memory_efficient_attention` if you need to"
        )
    if isinstance(bias, Tensor):
        _aligned(query, key, value, bias, p)
    if isinstance(bias, BlockDiagonalMask):
        for name, tensor, lengths in (("queries", query, bias.q_seqlen), ("keys", key, bias.kv_seqlen)):
            if sum(lengths) > tensor.shape[1]:
                what = f"a block-diagonal mask of {sum(lengths)} {name} over {tensor.shape[1]}"
                unanswered(LIBRARY, what, "the kernel reads beyond their end: give a mask of as many")


def _aligned(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, p: float) -> None:
    alignment = 128 // torch.finfo(bias.dtype).bits
    strides = bias.stride()
    reasons = [
        f"attn_bias.stride(-2) % {alignment} != 0 (attn_bias.stride() = {strides})"
        for stride in strides[:-1]
        if stride % alignment
    ]
    if reasons:
        reasons.append(
            "HINT: To use an `attn_bias` with a sequence length that is not a multiple of 8, you need to ensure memory "
            "is aligned by slicing a bigger tensor. Example: use `attn_bias = torch.zeros([1, 1, 5, 8])[:,:,:,:5]` "
            "instead of `torch.zeros([1, 1, 5, 5])`"
        )
    if strides[-1] > 1:
        reasons.append(
            f"attn_bias.stride(-1) > 1 (attn_bias.stride() = {strides}) - you should call `.contiguous()` on the bias"
        )
    if reasons:
        given = "\n".join(
            f"     {name:<12}: shape={tuple(one.shape)} ({one.dtype})"
            for name, one in (("query", query), ("key", key), ("value", value))
        )
        told = "\n    ".join(reasons)
        raise NotImplementedError(
            f"No operator found for `{NAME}` with inputs:\n{given}\n     {'attn_bias':<12}: {type(bias)}\n"
            f"     {'p':<12}: {p}\n`cutlassF-pt` is not supported because:\n    {told}"
        )
    if bias.dtype is not query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
