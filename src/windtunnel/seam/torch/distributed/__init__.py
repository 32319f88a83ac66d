"""`nccl` over gloo: groups, collectives, futures, and what goes with them."""
