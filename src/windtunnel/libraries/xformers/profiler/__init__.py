"""`xformers.profiler`: PyTorch's profilers over chosen steps of a training."""

from __future__ import annotations

from typing import NoReturn

from windtunnel.libraries import refuse

from .api import DEFAULT_SCHEDULE, profile, step
from .profiler import MemSnapshotsProfiler, NsightProfiler, PyTorchProfiler, PyTorchProfiler_CUDAOnly

__all__ = [
    "DEFAULT_SCHEDULE", "MemSnapshotsProfiler", "NsightProfiler", "PyTorchProfiler", "PyTorchProfiler_CUDAOnly",
    "profile", "step",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    refuse("xformers 0.0.31", "xformers.profiler", name)
