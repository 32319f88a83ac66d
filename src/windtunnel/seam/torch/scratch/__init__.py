"""What CUDA's kernels allocate beyond their results, as tables with a source each."""
