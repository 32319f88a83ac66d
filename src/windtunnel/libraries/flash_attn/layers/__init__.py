"""`flash_attn.layers`: the layers of models that flash_attn brings."""
