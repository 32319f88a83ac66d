"""The names of `d2l.jax` that the listings use, on windtunnel's own Trainer: the listings' hooks are its hooks."""

from windtunnel.jax import cpu, gpu, num_gpus, try_gpu
from windtunnel.train.jax import HyperParameters, Trainer, add_to_class

__all__ = ["HyperParameters", "Trainer", "add_to_class", "cpu", "gpu", "num_gpus", "try_gpu"]
