"""`flash_attn.losses`: loss functions."""
