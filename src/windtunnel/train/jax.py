"""The Trainer for JAX, from `windtunnel.train.frameworks.jax`."""

from windtunnel.train.frameworks.jax import State, Trainer, load_parameters, save_parameters
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "State", "Trainer", "add_to_class", "load_parameters", "save_parameters"]
