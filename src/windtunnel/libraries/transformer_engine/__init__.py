"""transformer_engine: layers of transformers whose products are in 8 bits.

`transformer_engine.pytorch` has `Linear`, `LayerNorm`, `RMSNorm`, `LayerNormLinear`, `LayerNormMLP`,
`DotProductAttention`, `MultiheadAttention` (self-attention), `TransformerLayer` (encoders), `RotaryPositionEmbedding`,
`autocast` and `fp8_autocast` with the recipes DelayedScaling, Float8CurrentScaling and MXFP8BlockScaling, and what says
which of these a GPU has. Numbers are quantized and multiplied as the library does it (`aten::_scaled_mm`), amaxes are
kept and scales renewed when its blocks end; a layer keeps its input and its weights in 8 bits for the backward pass,
transposed for tensor cores before Blackwell's. Attention is PyTorch's flash attention, or its other kernels where a
mask asks for them. Tensor and context parallelism, its communication overlap, weights kept in 8 bits, calibration, its
checkpoint, its optimizers, grouped products, attention in 8 bits, FP8 block scaling and NVFP4 are refused.

Source of the interface: NVIDIA/TransformerEngine 2.18.0, transformer_engine/pytorch/module, quantization.py and
attention; of what it saves, `_linear_setup_ctx` of module/linear.py. Where it fuses a norm or an activation with the
quantization that follows, these are two kernels here.
"""

from . import pytorch

__version__ = "2.18.0"
__all__ = ["pytorch"]
