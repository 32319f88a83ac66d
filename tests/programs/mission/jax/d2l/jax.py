"""The names of `d2l.jax` that the listings use, on understudy's own Trainer: the listings' hooks are its hooks."""

from understudy.jax import cpu, gpu, num_gpus, try_gpu
from understudy.train.jax import HyperParameters, Trainer, add_to_class

__all__ = ["HyperParameters", "Trainer", "add_to_class", "cpu", "gpu", "num_gpus", "try_gpu"]
