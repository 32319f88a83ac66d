"""`d2l.jax`: its devices, and a Trainer with the book's hooks, which is windtunnel's own."""

from typing import NoReturn

from windtunnel.jax import cpu, gpu, num_gpus, try_all_gpus, try_gpu
from windtunnel.libraries import refuse
from windtunnel.libraries.d2l import INSTEAD
from windtunnel.train.board import Board as ProgressBoard
from windtunnel.train.frameworks.jax import Trainer as _Trainer
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = [
    "HyperParameters",
    "ProgressBoard",
    "Trainer",
    "add_to_class",
    "cpu",
    "gpu",
    "num_gpus",
    "try_all_gpus",
    "try_gpu",
]


def __getattr__(name: str) -> NoReturn:
    refuse("d2l 1.0.3", "d2l.jax", name, INSTEAD)


class Trainer(_Trainer):
    """One that programs may change without changing windtunnel's."""
