"""What CUDA does differently from the CPU for an operator: one deviation, one file."""
