"""cuBLAS's handles: the workspace of each, and before PyTorch 2.10 what determinism asked of it.

Source of the alert: `alertCuBLASConfigNotDeterministic` in aten/src/ATen/Context.cpp of PyTorch 2.6, which
https://github.com/pytorch/pytorch/pull/161749 took out.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import torch

from windtunnel.seam.torch.tags import VERSION

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.state import State

ALERTS = VERSION < (2, 10)
VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE = (":4096:8", ":16:8")
ALERT = (
    "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
    "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS "
    "and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an environment variable "
    f"before running your PyTorch application: {VARIABLE}={REPEATABLE[0]} or {VARIABLE}={REPEATABLE[1]}. For more "
    "information, go to https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility"
)
WITHOUT = frozenset({"aten::dot", "aten::vdot"})
"""Operators that take cuBLAS's workspace and do not look."""


def use(state: State, name: str, index: int, stream: int) -> None:
    """A matrix product takes the handle of its thread and stream."""
    if ALERTS:
        check(state, name)
    handle = state.memory.handle()
    if (index, stream, handle) not in state.memory.workspaces:
        state.memory.workspace(index, stream, handle)


def is_held(state: State, index: int, stream: int) -> bool:
    """Whether this thread's handle has its workspace on a stream already."""
    return (index, stream, state.memory.handle()) in state.memory.workspaces


def check(state: State, name: str) -> None:
    """Raise, or warn where the program asked for warnings only; the variable counts as it was at the first product."""
    if state.blas_repeatable is None:
        state.blas_repeatable = os.environ.get(VARIABLE) in REPEATABLE
    if state.blas_repeatable or name in WITHOUT or not torch.are_deterministic_algorithms_enabled():
        return
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(ALERT)
    warnings.warn(ALERT, stacklevel=2)
