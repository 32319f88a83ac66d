"""flash_attn 2: attention, packed, of texts of several lengths and with a cache; what goes with it.

`flash_attn_func` and its kin launch PyTorch's own flash attention (`aten::_flash_attention_forward`), which is the same
kernel, and keep what the library keeps: queries, keys, values, the result, a logarithm for each row. Softcapping, ALiBi
and pages of a cache are computed by their definition and priced like it. `_flash_attn_forward`, `_flash_attn_backward`
and their `varlen` kin are the kernels alone, which ring attention and diffusers call. Beside it: `bert_padding`,
`layers.rotary`, `ops.rms_norm`, `ops.layer_norm`, `ops.triton.layer_norm`, `ops.triton.cross_entropy`,
`losses.cross_entropy`. Modules of whole models, fused dense layers, and dropout inside norms are refused.

Source of the interface: flash_attn 2.8.3, flash_attn/flash_attn_interface.py; of what it refuses,
csrc/flash_attn/flash_api.cpp.
"""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3"
__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
