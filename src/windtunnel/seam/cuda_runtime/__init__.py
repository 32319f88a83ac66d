"""CUDA's runtime for host code of extensions: what the stub library asks, answered by the emulated driver."""
