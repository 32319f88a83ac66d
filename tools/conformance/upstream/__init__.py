"""PyTorch's own CUDA tests on emulated GPUs: fetched, run, counted. `tools/conformance` is the command."""
