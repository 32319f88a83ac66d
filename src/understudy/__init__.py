"""understudy: the stand-in for GPUs. Run, time, check and train CUDA programs on a machine that has none."""

__version__ = "0.1.0"
