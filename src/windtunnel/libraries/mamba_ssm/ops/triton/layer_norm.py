"""`mamba_ssm.ops.triton.layer_norm`: norms with a residual, which are those of flash_attn."""

from windtunnel.libraries.flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]
