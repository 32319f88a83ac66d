"""xformers: memory-efficient attention and its biases.

`xformers.ops.memory_efficient_attention` over [batch, tokens, heads, width], with no bias, a tensor,
`LowerTriangularMask`, `LowerTriangularFromBottomRightMask`, `BlockDiagonalMask` and `BlockDiagonalCausalMask`. It
launches flash attention for half precision and the memory-efficient kernel else, which PyTorch has both, forward
and backward. Other biases, groups of heads in five dimensions, a choice of the kernel (`op`), and the library's
fused layers are refused.

Source of the interface: xformers 0.0.31, xformers/ops/fmha/__init__.py and attn_bias.py.
"""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

__version__ = "0.0.31"


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers", name)
