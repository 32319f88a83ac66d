"""xformers: memory-efficient attention and its biases.

`xformers.ops.memory_efficient_attention` over [batch, tokens, heads, width] and groups of heads, with no bias, a
tensor, causal masks, windows, texts one behind another (`BlockDiagonalMask` and its kin) and caches
(`BlockDiagonalPaddedKeysMask` and its kin). It chooses between flash attention and the memory-efficient kernel as the
library does, which PyTorch has both, forward and backward, or takes the one given as `op`; on Hopper the library has
flash attention 3. Beside it: `unbind`, `SwiGLU`, `RMSNorm`, `scaled_index_add`, `index_select_cat` and
`xformers.profiler`, where a kernel that the library fuses is one or two of PyTorch's. Pages and gaps in caches,
`memory_efficient_attention_partial`, `rope_padded`, 2:4 sparsity and sequence parallelism are refused.

Source of the interface: xformers 0.0.31, xformers/ops/fmha/__init__.py, attn_bias.py and dispatch.py,
xformers/ops/swiglu_op.py, xformers/profiler.
"""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

__version__ = "0.0.31"


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers", name)
