"""Whether this machine has GPUs: asked of NVML, which no framework needs to be imported for."""

from __future__ import annotations

import os


def real_gpus() -> int:
    """How many NVIDIA GPUs this machine has; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def visible_gpus() -> int:
    """How many of them a program would see; 0 where CUDA_VISIBLE_DEVICES hides them all."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return 0 if hidden else real_gpus()


def visible_models() -> list[tuple[str, int]]:
    """The names of those GPUs as NVIDIA's driver gives them, and their bytes of memory; empty without a driver."""
    import pynvml

    if not visible_gpus():
        return []
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [(pynvml.nvmlDeviceGetName(one), int(pynvml.nvmlDeviceGetMemoryInfo(one).total)) for one in handles]
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str:
    """The version of the driver; empty without one."""
    import pynvml

    if not real_gpus():
        return ""
    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
