"""`xformers.profiler.profiler`: the profilers, and what starts and ends them.

What the library adds of its own, the share of a GPU's peak that a trace's products have, is left out.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Protocol

import torch
import torch.cuda._memory_viz
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity

logger = logging.getLogger(__name__)


def _worker() -> str:
    """This process, with its rank filled up to the width of the last."""
    name = f"{socket.gethostname()}_{os.getpid()}"
    if dist.is_available() and dist.is_initialized():
        rank = f"{dist.get_rank()}".zfill(len(f"{dist.get_world_size() - 1}"))
        return f"rank{rank}_{name}"
    return name


class NsightProfiler:
    """Marks the steps for Nsight Systems."""

    def __init__(self, main_profiler: _Profiler) -> None:
        self.main_profiler = main_profiler

    def __enter__(self) -> None:
        torch.cuda.profiler.start()

    def __exit__(self, *error: object) -> None:
        torch.cuda.profiler.stop()

    def step(self) -> None:
        """A step has ended."""


class PyTorchProfiler:
    """PyTorch's profiler, with shapes, memory and stacks; it writes a trace."""

    ACTIVITIES: ClassVar = [ProfilerActivity.CPU, ProfilerActivity.CUDA]

    def __init__(self, main_profiler: _Profiler) -> None:
        self.main_profiler = main_profiler
        self.num_steps = 0
        self.pytorch_profiler = torch.profiler.profile(
            on_trace_ready=self._on_trace, profile_memory=True, record_shapes=True, with_stack=True, with_flops=True,
            activities=self.ACTIVITIES,
        )  # fmt: skip

    def _on_trace(self, profiler: torch.profiler.profile) -> None:
        kinds = "_".join(activity.name for activity in self.ACTIVITIES)
        folder = self.main_profiler.output_dir / f"profile_{kinds}_{self.main_profiler.done_steps:06}"
        folder.mkdir(parents=True, exist_ok=True)
        worker = self.main_profiler.worker_name or _worker()
        profiler.export_chrome_trace(str(folder / f"{worker}.{time.time_ns()}.pt.trace.json.gz"))
        self._analyze_trace(profiler)

    def _analyze_trace(self, prof: torch.profiler.profile) -> None:
        """What programs that extend it call: nothing here."""

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self.pytorch_profiler.__enter__()

    def __exit__(self, *error: object) -> None:
        torch.cuda.synchronize()
        self.pytorch_profiler.__exit__(*error)  # type: ignore[arg-type]

    def step(self) -> None:
        """A step has ended."""
        self.pytorch_profiler.step()
        self.num_steps += 1


class PyTorchProfiler_CUDAOnly(PyTorchProfiler):  # noqa: N801 # the library's name
    """The same of the GPU alone."""

    ACTIVITIES: ClassVar = [ProfilerActivity.CUDA]


class MemSnapshotsProfiler:
    """A page of the allocations and releases of these steps."""

    def __init__(self, main_profiler: _Profiler) -> None:
        self.main_profiler = main_profiler

    def __enter__(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=100_000)

    def __exit__(self, *error: object) -> None:
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        if not any(snapshot["device_traces"]):
            self.main_profiler.summary.append(("MemTrace", "(no allocation recorded)"))
            return
        file = self.main_profiler._create_output_filename("memory_trace_plot.html")
        self.main_profiler.summary.append(("MemTrace", str(file)))
        file.write_text(torch.cuda._memory_viz.trace_plot(snapshot, device=None, plot_segments=False))

    def step(self) -> None:
        """A step has ended."""


class _Running(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def step(self) -> None:
        """A step has ended."""


Schedule = Sequence[tuple[Callable[["_Profiler"], _Running], int, int]]
"""(profiler, first step, step after its last)"""


class _Profiler:
    """Starts and ends each profiler of a schedule at its steps."""

    _CURRENT_PROFILER: ClassVar[_Profiler | None] = None

    def __init__(self, output_dir: str, schedule: Schedule, module: nn.Module | None) -> None:
        for _, begin, end in schedule:
            assert begin >= 0, f"Begin step of profiler must be non-negative, found: {begin}"
            assert begin < end, f"Start must be before the end, found: begin={begin} and end={end}"
        self.schedule = sorted(schedule, key=lambda row: row[1])
        for (_, _, end), (_, begin, _) in pairwise(self.schedule):
            assert begin >= end, f"There is some overlapping in profiler scheduling. Schedule: {schedule}"
        self.output_dir = Path(output_dir).absolute()
        self.output_dir.mkdir(exist_ok=True, parents=True)
        self.worker_name = _worker() if dist.is_available() and dist.is_initialized() else ""
        self.done_steps = 0
        self.last_step = self.schedule[-1][2] if self.schedule else 0
        self.summary: list[tuple[str, str]] = []
        self._running: dict[int, _Running] = {}

    def _create_output_filename(self, filename: str) -> Path:
        if not self.worker_name:
            return self.output_dir / f"{self.done_steps:06}_{filename}"
        folder = self.output_dir / Path(filename).stem
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.done_steps:06}_{self.worker_name}{Path(filename).suffix}"

    def _update(self) -> None:
        for i, (kind, begin, end) in enumerate(self.schedule):
            running = self._running.get(i)
            if begin <= self.done_steps < end:
                if running is None:
                    self._running[i] = kind(self)
                    self._running[i].__enter__()
                else:
                    running.step()
            elif running is not None:
                del self._running[i]
                running.step()
                running.__exit__(None, None, None)

    def start(self) -> None:
        """Begin the first step."""
        self.__enter__()

    def stop(self, *error: object) -> None:
        """End what still runs."""
        self.__exit__(*error)

    def __enter__(self) -> _Profiler:
        if _Profiler._CURRENT_PROFILER is not None:
            raise ValueError("Only one xformers profiler can be active at a time")
        _Profiler._CURRENT_PROFILER = self
        self._update()
        return self

    def __exit__(self, *error: object) -> None:
        _Profiler._CURRENT_PROFILER = None
        for running in self._running.values():
            running.__exit__(*(error or (None, None, None)))
        self._running.clear()

    def step(self) -> None:
        """A step has ended."""
        self.done_steps += 1
        if self.done_steps <= self.last_step:
            self._update()
        if self.done_steps == self.last_step:
            logger.info("xFormers profiler done. %s", self.format_summary())

    def format_summary(self) -> str:
        """What the profilers have written."""
        width = max((len(title) for title, _ in self.summary), default=0)
        return "\n".join(f"  {title.ljust(width)}: {value}" for title, value in self.summary)
