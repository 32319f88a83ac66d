"""`flash_attn.ops.triton.rotary`: the kernel itself, without a gradient."""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.libraries import refuse

from ...layers import rotary as _rotary

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.ops.triton.rotary", name)


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Turn pairs of numbers, or turn them back with `conjugate`."""
    assert _rotary is not None
    told = (seqlen_offsets, None) if isinstance(seqlen_offsets, int) else (0, seqlen_offsets)
    if inplace:
        torch.ops.flash_attn.rotary_(x, cos, sin, *told, cu_seqlens, interleaved, conjugate)
        return x
    found: Tensor = torch.ops.flash_attn.rotary(x, cos, sin, *told, cu_seqlens, interleaved, conjugate)
    return found
