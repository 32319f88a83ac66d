"""PyTorch's own CUDA tests on emulated GPUs: fetched, run, counted. `tools/conformance.py` is the command."""
