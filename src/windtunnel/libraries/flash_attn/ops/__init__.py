"""`flash_attn.ops`: fused operators."""
