"""The names of `d2l.mxnet` that the listings use, on windtunnel's own Trainer: the listings' hooks are its hooks."""

from windtunnel.mxnet import cpu, gpu, num_gpus, try_gpu
from windtunnel.train.mxnet import HyperParameters, Module, Trainer, add_to_class

__all__ = ["HyperParameters", "Module", "Trainer", "add_to_class", "cpu", "gpu", "num_gpus", "try_gpu"]
