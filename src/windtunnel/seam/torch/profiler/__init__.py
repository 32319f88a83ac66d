"""`torch.profiler` with CUDA activities: the events that Kineto would have written."""
