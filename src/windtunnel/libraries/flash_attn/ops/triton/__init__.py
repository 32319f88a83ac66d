"""`flash_attn.ops.triton`: operators that the library writes in Triton."""
