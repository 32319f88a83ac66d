"""Recording a program on a real GPU: torch.profiler and the allocator's history, from CUDA's first use to the exit.

Nothing of PyTorch is replaced. `torch.cuda._lazy_call` runs a function when a process first uses CUDA, and that is when
the recording begins, so a process that never does leaves nothing behind.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING

SUFFIX = ".kineto.json.gz"
SNAPSHOT = ".snapshot.pickle"
BEGUN = ".recording"
"""A file that stands while a process is recorded: one that is left over is that of a process which wrote nothing."""
MOST_ENTRIES = 1_000_000  # of the allocator's history, which is kept on the host


def when_cuda_begins(folder: str) -> None:
    """Record this process from its first use of CUDA on, into `folder`; torch must be imported."""
    import torch

    def begin() -> None:
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=MOST_ENTRIES)
            start(folder)

    torch.cuda._lazy_call(begin)


def start(folder: str) -> None:
    """Begin to record, on the GPU as well where there is one; what was recorded is written at the process's exit."""
    from torch.profiler import profile

    profiler = profile(record_shapes=True, profile_memory=True, with_stack=True)
    profiler.start()
    (Path(folder) / f"{os.getpid()}{BEGUN}").touch()
    atexit.register(_write, profiler, Path(folder), os.getpid())


if TYPE_CHECKING:
    from torch.profiler import profile


def _write(profiler: profile, folder: Path, process: int) -> None:
    import torch

    if os.getpid() != process or not folder.is_dir():
        return  # a fork of the process that is recorded, or a run that is over
    profiler.stop()
    profiler.export_chrome_trace(str(folder / f"{process}{SUFFIX}"))
    if torch.cuda.is_available():
        torch.cuda.memory._dump_snapshot(str(folder / f"{process}{SNAPSHOT}"))
    (folder / f"{process}{BEGUN}").unlink(missing_ok=True)
