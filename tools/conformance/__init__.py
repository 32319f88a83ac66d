"""PyTorch's own CUDA tests, and memory snapshots that others recorded."""
