"""The Trainer for TensorFlow, from `windtunnel.train.frameworks.tensorflow`."""

from windtunnel.train.frameworks.tensorflow import Trainer, load_parameters, save_parameters
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "Trainer", "add_to_class", "load_parameters", "save_parameters"]
