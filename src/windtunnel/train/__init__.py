"""Training at hand-tuned speed on one device or many: the Trainer, and those of its parts that can be used alone.

Names are loaded on first use, so that the Trainer of one framework needs no other framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from windtunnel.errors import MissingPackageError, torch_is_missing

if TYPE_CHECKING:
    from windtunnel.train.board import Board
    from windtunnel.train.callbacks import Callback, EarlyStopping
    from windtunnel.train.checkpoint import load_parameters, read_checkpoint, save_parameters
    from windtunnel.train.checkpoints import Checkpoints
    from windtunnel.train.data import Tensors
    from windtunnel.train.hooks import HyperParameters, add_to_class
    from windtunnel.train.loggers import CSVLogger, Logger, TensorBoardLogger
    from windtunnel.train.metrics import Metrics
    from windtunnel.train.module import Module, set_scratch_params_device
    from windtunnel.train.prefetch import Prefetcher
    from windtunnel.train.reproducible import seed_all
    from windtunnel.train.trainer import Trainer

__all__ = [
    "Board",
    "CSVLogger",
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "HyperParameters",
    "Logger",
    "Metrics",
    "Module",
    "Prefetcher",
    "TensorBoardLogger",
    "Tensors",
    "Trainer",
    "add_to_class",
    "load_parameters",
    "read_checkpoint",
    "save_parameters",
    "seed_all",
    "set_scratch_params_device",
]

_HOMES = {
    "Board": "board",
    "Callback": "callbacks",
    "EarlyStopping": "callbacks",
    "load_parameters": "checkpoint",
    "read_checkpoint": "checkpoint",
    "save_parameters": "checkpoint",
    "Checkpoints": "checkpoints",
    "Tensors": "data",
    "CSVLogger": "loggers",
    "Logger": "loggers",
    "TensorBoardLogger": "loggers",
    "Metrics": "metrics",
    "HyperParameters": "hooks",
    "Module": "module",
    "add_to_class": "hooks",
    "set_scratch_params_device": "module",
    "Prefetcher": "prefetch",
    "seed_all": "reproducible",
    "Trainer": "trainer",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch" or isinstance(error, MissingPackageError):
            raise
        raise torch_is_missing() from None
