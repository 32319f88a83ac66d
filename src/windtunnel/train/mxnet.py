"""The Trainer for MXNet 1.9, from `windtunnel.train.frameworks.mxnet`."""

from windtunnel.train.frameworks.mxnet import Module, Trainer, load_parameters, save_parameters
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "Module", "Trainer", "add_to_class", "load_parameters", "save_parameters"]
