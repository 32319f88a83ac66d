"""The seam into MXNet: gpu(i) is the CPU context 1000 + i below the C interface."""
