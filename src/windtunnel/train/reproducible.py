"""Seeds, deterministic algorithms, and the states of all random generators as data."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from windtunnel import torch as wt


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, object]:
    """The states of Python's, NumPy's and PyTorch's generators, including all GPUs', as plain data and CPU tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "cpu": torch.get_rng_state(),
        "gpus": [torch.cuda.get_rng_state(i) for i in range(wt.num_gpus())] if wt.num_gpus() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore `random_state()`. States of GPUs that this machine lacks are ignored."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["cpu"])
    for index, gpu_state in enumerate(state["gpus"][: wt.num_gpus()]):
        torch.cuda.set_rng_state(gpu_state, index)


@contextmanager
def deterministic_algorithms(on: bool) -> Iterator[None]:
    """Turns on PyTorch's deterministic algorithms in a block. cuBLAS reads its variable on first use in the process."""
    if not on:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
