"""The Trainer for TensorFlow, from `understudy.train.frameworks.tensorflow`."""

from understudy.train.frameworks.tensorflow import Trainer, load_parameters, save_parameters
from understudy.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "Trainer", "add_to_class", "load_parameters", "save_parameters"]
