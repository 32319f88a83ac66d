"""`xformers.profiler.api`: a profiler around a training's loop."""

from __future__ import annotations

from torch import nn

from .profiler import (
    MemSnapshotsProfiler,
    NsightProfiler,
    PyTorchProfiler,
    PyTorchProfiler_CUDAOnly,
    Schedule,
    _Profiler,
)

DEFAULT_SCHEDULE = (
    (MemSnapshotsProfiler, 0, 2),
    (NsightProfiler, 4, 6),
    (PyTorchProfiler, 6, 7),
    (PyTorchProfiler_CUDAOnly, 7, 8),
)
__all__ = ["DEFAULT_SCHEDULE", "profile", "step"]


def profile(
    output_dir: str, module: nn.Module | None = None, schedule: Schedule = DEFAULT_SCHEDULE
) -> _Profiler:  # fmt: skip
    """A context in which each profiler of (profiler, first step, step after its last) runs, and writes to a folder."""
    return _Profiler(output_dir, schedule, module)


def step() -> None:
    """A step has ended."""
    if _Profiler._CURRENT_PROFILER is not None:
        _Profiler._CURRENT_PROFILER.step()
