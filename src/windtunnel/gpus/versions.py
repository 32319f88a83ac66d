"""What depends on the CUDA version: the driver that nvidia-smi names, and the memory that a CUDA context takes."""

from __future__ import annotations

import functools
import re
import tomllib
from functools import cache
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.gpus.gpu import FOLDER, Gpu
from windtunnel.version import installed

Version = tuple[int, int]
_FIRST_CUDA: dict[str, Version] = {
    "volta": (9, 0),
    "turing": (10, 0),
    "ampere": (11, 0),
    "ampere-86": (11, 1),
    "ada": (11, 8),
    "hopper": (11, 8),
    "blackwell": (12, 8),
    "blackwell-120": (12, 8),
}
_LAST_CUDA: dict[str, Version] = {"kepler": (11, 8), "pascal": (12, 6), "volta": (12, 6)}
"""The newest CUDA whose wheels of PyTorch have kernels for these GPUs.

Sources: pytorch/pytorch#157517 and #172352; of Kepler, the architectures of the wheels for CUDA 11.8 up to PyTorch 2.7
(moi90/pytorch_compute_capabilities).
"""
_LAST_DRIVER: dict[str, Version] = {"kepler": (11, 4)}
"""The CUDA version of the last driver for these GPUs, which runs all of CUDA 11 ("Minor Version Compatibility").

Source: "Support Plan for Kepler-series GeForce GPUs for Desktop" of NVIDIA, whose last driver is R470.
"""
DOCUMENTS_CUDA: Version = (11, 2)


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / "tables" / f"{name}.toml").read_text(encoding="utf-8"))


def parse_version(text: str) -> Version:
    """(11, 2) of "11.2" or "11.2.1".

    Raises:
        UsageError: the text is not a version number.
    """
    parts = text.strip().split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"{text!r} is not a CUDA version: write one such as 11.2")
    return int(parts[0]), int(parts[1])


def default_cuda(gpus: tuple[Gpu, ...]) -> Version:
    """The CUDA version to emulate when nobody chose one: 11.2 as in the documents, or the first that knows the GPUs."""
    return max((DOCUMENTS_CUDA, *(_FIRST_CUDA.get(gpu.generation, DOCUMENTS_CUDA) for gpu in gpus)))


def runtime_cuda(gpus: tuple[Gpu, ...], torch: str | None) -> Version:
    """The CUDA version that a program runs with when nobody chose one: that of PyTorch's wheel of this version.

    A wheel says its own ("2.13.0+cu126"). Without PyTorch (None) it is `default_cuda`.
    """
    default = default_cuda(gpus)
    if torch is None:
        return default
    wheel = re.match(r"(\d+)\.(\d+)[^+]*(?:\+cu(\d+)(\d))?", torch)
    if wheel is None:
        return default
    if wheel[3]:
        return int(wheel[3]), int(wheel[4])
    release = int(wheel[1]), int(wheel[2])
    builds = {parse_version(key): parse_version(value) for key, value in _table("builds")["torch"].items()}
    built = max((cuda for first, cuda in builds.items() if first <= release), default=default)
    return min((built, *(_LAST_CUDA[gpu.generation] for gpu in gpus if gpu.generation in _LAST_CUDA)))


def driver_cuda(gpus: tuple[Gpu, ...], torch: str | None) -> Version:
    """The CUDA version of the driver beside a program when nobody chose one: it serves both its GPUs and its PyTorch.

    A driver runs programs of its own CUDA version and of older ones ("CUDA Compatibility" of NVIDIA's documentation).
    """
    newest = max(default_cuda(gpus), runtime_cuda(gpus, torch))
    return min((newest, *(_LAST_DRIVER[gpu.generation] for gpu in gpus if gpu.generation in _LAST_DRIVER)))


@functools.cache
def installed_torch() -> str | None:
    """The version of the installed PyTorch, without importing it; None where there is none."""
    return installed("torch")


def driver_version(cuda: Version) -> str:
    """The Linux driver of that CUDA version, such as "460.106.00"; of the nearest earlier one when it is not known."""
    drivers = {parse_version(key): value for key, value in _table("drivers")["driver"].items()}
    known = [version for version in drivers if version <= cuda]
    return str(drivers[max(known)] if known else drivers[min(drivers)])


def context_bytes(gpu: Gpu, cuda: Version) -> int:
    """The device memory that one process takes on this GPU before it allocates anything, in bytes."""
    for row in _table("contexts")["context"]:
        first, end = (parse_version(text) for text in row["cuda"])
        if row["generation"] in ("*", gpu.generation) and first <= cuda < end:
            return int(row["mib"]) << 20
    return 400 << 20


def communicator_bytes(gpu: Gpu, ranks: int) -> int:
    """The device memory that NCCL takes for a communicator of so many ranks, in bytes; 0 where it is not known."""
    for row in _table("communicators")["communicator"]:
        first, end = row["ranks"]
        if first <= ranks < end and row["nvlink"] == (gpu.nvlink_bandwidth_bytes_per_s > 0):
            return int(row["mib"]) << 20
    return 0


def process_gap_bytes() -> int:
    """How much more nvidia-smi counts for a device than for the processes on it, in bytes."""
    return int(_table("contexts")["process_gap_mib"]) << 20
