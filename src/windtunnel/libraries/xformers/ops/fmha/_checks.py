"""What xformers refuses before it chooses a kernel, in its words (`Inputs.validate_inputs` of fmha/common.py)."""

from __future__ import annotations

import torch

from windtunnel.libraries import unanswered

from . import attn_bias as biases
from ._operators import dense

LIBRARY = "xformers 0.0.31"
Tensor = torch.Tensor


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"  query.shape: {query.shape}\n  key.shape  : {key.shape}\n  value.shape: {value.shape}"


def validate(query: Tensor, key: Tensor, value: Tensor, bias: object, p: float) -> None:
    """Raise what the library does of shapes, types and biases that do not fit.

    Raises:
        ValueError: shapes and types.
    """
    shapes = _shapes(query, key, value)
    if query.dim() not in (3, 4, 5) or not query.dim() == key.dim() == value.dim():
        raise ValueError(f"Query/Key/Value should all have BMGHK, BMHK or BMK shape.\n{shapes}")
    if any(one.dtype is not query.dtype for one in (key, value)):
        raise ValueError(
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should have "
            f"dtype torch.int32\n  query.dtype: {query.dtype}\n  key.dtype  : {key.dtype}\n  value.dtype: {value.dtype}"
        )
    plain = (biases.LowerTriangularMask, Tensor, torch.nn.Parameter)
    if query.dim() == 3 and not (bias is None or type(bias) in plain):
        kind = type(bias).__name__
        raise ValueError(f"Please provide inputs in BMHK format rather than BMK when using bias type `{kind}`")
    tensor = dense(bias)
    if query.dim() == 4 and tensor is not None:
        expected = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        if tuple(tensor.shape) != expected:
            raise ValueError(f"Invalid shape for attention bias: {tensor.shape} (expected {expected})\n{shapes}")
    if isinstance(bias, biases._Blocks):
        _texts(query, key, value, bias)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"Invalid dropout probability: p={p}")
    batch, middle = key.shape[0], query.shape[2:-1]
    fits = query.shape[0] == batch and key.shape[2:] == query.shape[2:]
    if not fits or value.shape[:2] != key.shape[:2] or value.shape[2:-1] != middle:
        raise ValueError(
            f"Incompatible shapes for attention inputs:\n{shapes}\nHINT: We don't support broadcasting, please use "
            "`expand` yourself before calling `memory_efficient_attention` if you need to"
        )
    if tensor is not None and tensor.is_floating_point() and tensor.dtype is not query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")


def _texts(query: Tensor, key: Tensor, value: Tensor, bias: biases._Blocks) -> None:
    where = bias.q_seqinfo.seqstart.device
    if where != query.device:
        raise ValueError(
            "Attention bias and Query/Key/Value should be on the same device\n"
            f"  query.device: {query.device}\n  attn_bias   : {where}\n"
        )
    padded = isinstance(bias, biases.BlockDiagonalPaddedKeysMask)
    if not padded and any(one.shape[0] != 1 for one in (query, key, value)):
        shapes = _shapes(query, key, value)
        raise ValueError(f"Expected batch_size=1 when using block-diagonal bias\n{shapes}")
    for name, tensor, info in (("queries", query, bias.q_seqinfo), ("keys", key, bias.k_seqinfo)):
        if info.seqstart_py[-1] > tensor.shape[1]:
            what = f"a block-diagonal mask of {info.seqstart_py[-1]} {name} over {tensor.shape[1]}"
            unanswered(LIBRARY, what, "the kernel reads beyond their end: give a mask of as many")
