"""The Trainer for MXNet 1.9, from `understudy.train.frameworks.mxnet`."""

from understudy.train.frameworks.mxnet import Module, Trainer, load_parameters, save_parameters
from understudy.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "Module", "Trainer", "add_to_class", "load_parameters", "save_parameters"]
