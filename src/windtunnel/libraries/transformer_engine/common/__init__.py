"""`transformer_engine.common`: what all frameworks share."""
