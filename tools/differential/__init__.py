"""PyTorch on emulated GPUs beside plain PyTorch: every operator of its operator database, and random programs."""
