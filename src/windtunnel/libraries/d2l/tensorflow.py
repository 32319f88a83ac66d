"""`d2l.tensorflow`: its devices."""

from typing import NoReturn

import tensorflow as tf

from windtunnel.libraries import refuse
from windtunnel.libraries.d2l import INSTEAD
from windtunnel.train.board import Board as ProgressBoard
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = ["HyperParameters", "ProgressBoard", "add_to_class", "cpu", "gpu", "num_gpus", "try_all_gpus", "try_gpu"]


def __getattr__(name: str) -> NoReturn:
    refuse("d2l 1.0.3", "d2l.tensorflow", name, INSTEAD)


def cpu() -> object:
    """The CPU, as a context."""
    return tf.device("/CPU:0")


def gpu(i: int = 0) -> object:
    """A GPU, as a context."""
    return tf.device(f"/GPU:{i}")


def num_gpus() -> int:
    """How many GPUs there are."""
    return len(tf.config.experimental.list_physical_devices("GPU"))


def try_gpu(i: int = 0) -> object:
    """gpu(i) if it exists, otherwise cpu()."""
    return gpu(i) if num_gpus() >= i + 1 else cpu()


def try_all_gpus() -> list[object]:
    """Every GPU, or [cpu()] if there is none."""
    return [gpu(i) for i in range(num_gpus())] or [cpu()]
