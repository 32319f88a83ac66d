"""Training at hand-tuned speed on one device or many: the Trainer, and the parts of it that stand alone."""

from understudy.train.board import Board
from understudy.train.callbacks import Callback, EarlyStopping
from understudy.train.checkpoint import load_parameters, read_checkpoint, save_parameters
from understudy.train.checkpoints import Checkpoints
from understudy.train.data import Tensors
from understudy.train.loggers import CSVLogger, Logger, TensorBoardLogger
from understudy.train.metrics import Metrics
from understudy.train.module import HyperParameters, Module, add_to_class, set_scratch_params_device
from understudy.train.prefetch import Prefetcher
from understudy.train.reproducible import seed_all
from understudy.train.trainer import Trainer

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
