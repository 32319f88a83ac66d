"""What the experiments share: names of devices, the wall clock, peaks from the catalogue."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from windtunnel import gpus
from windtunnel import torch as wt
from windtunnel.errors import UnknownGpuError
from windtunnel.experiments._result import Origin

LONGEST_MEASUREMENT_S = 0.5
MOST_REPEATS = 100
LISTENERS: list[Callable[[], None]] = []
"""Called each time before something is measured."""


def devices() -> dict[Origin, str]:
    """The names of the CPU, with PyTorch's threads, and of the GPUs that there are."""
    threads = torch.get_num_threads()
    found: dict[Origin, str] = {"cpu": f"{cpu_name()} ({threads} thread{'s' if threads != 1 else ''})"}
    models = [torch.cuda.get_device_name(i) for i in range(wt.num_gpus())]
    if models:
        counts = {model: models.count(model) for model in models}
        found["gpu"] = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in counts.items())
    return found


def cpu_name() -> str:
    """The model of this machine's CPU, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def wall_s(work: Callable[[], object], warmup: int = 1, repeats: int = 1) -> float:
    """The median time of `work` on host and GPUs together, in seconds: from an idle machine to an idle machine."""
    for listener in LISTENERS:
        listener()
    times = []
    for _ in range(warmup):
        work()
    for _ in range(repeats):
        wt.synchronize()
        begin = time.perf_counter()
        work()
        wt.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def cpu_s(work: Callable[[], object]) -> float:
    """The time of `work` on the CPU, in seconds: the quickest of up to 100 runs, as many as fit into half a second.

    What else the machine does can only slow a run down, so the quickest is the nearest to what the work takes (the
    documentation of Python's `timeit` says why).
    """
    for listener in LISTENERS:
        listener()
    timer = wt.timer(wt.cpu())
    once = timer.measure(work, warmup=0, repeats=1).median_s
    again = min(MOST_REPEATS, int(LONGEST_MEASUREMENT_S / max(once, 1e-9)))
    return min(once, *timer.measure(work, warmup=1, repeats=again).times_s) if again > 1 else once


def peak_flops(device: torch.device, *precisions: str) -> float | None:
    """The catalogue's peak of a GPU at the first of these precisions that it has, in operations a second, else None."""
    try:
        peaks = gpus.find(torch.cuda.get_device_name(device)).peak_flops
    except UnknownGpuError:
        return None
    return next((peaks[precision] for precision in precisions if precision in peaks), None)
