"""`d2l.mxnet`: its devices, and a Module and a Trainer with the book's hooks, which are windtunnel's own."""

from typing import NoReturn

from windtunnel.libraries import refuse
from windtunnel.libraries.d2l import INSTEAD
from windtunnel.mxnet import cpu, gpu, num_gpus, try_all_gpus, try_gpu
from windtunnel.train.board import Board as ProgressBoard
from windtunnel.train.frameworks.mxnet import Module as _Module
from windtunnel.train.frameworks.mxnet import Trainer as _Trainer
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = [
    "HyperParameters",
    "Module",
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
    refuse("d2l 1.0.3", "d2l.mxnet", name, INSTEAD)


class Module(_Module):
    """One that programs may change without changing windtunnel's."""


class Trainer(_Trainer):
    """Here too."""
