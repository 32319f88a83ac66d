"""Handles of CUDA's libraries: what an operator that is a thread's first of a library on a device makes.

That takes CUDA calls which are not permitted during a capture, so PyTorch asks for a warm-up before it. Sources:
aten/src/ATen/cuda/detail/DeviceThreadHandles.h and its users, CuFFTPlanCache.h; the texts are those of PyTorch 2.11
with CUDA 13.0 on an H100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from windtunnel.operators.card import CUBLAS, CUDNN, CUFFT, CUSOLVER
from windtunnel.seam.torch.plans.arguments import Keywords
from windtunnel.seam.torch.plans.call import Call

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.state import State

REFUSED = {
    CUBLAS: "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    CUDNN: "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    CUSOLVER: (
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`. If you keep seeing "
        "this error, you may use `torch.backends.cuda.preferred_linalg_library()` to try linear algebra operators with "
        "other supported backends. See "
        "https://pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_linalg_library"
    ),
    CUFFT: "cuFFT error: CUFFT_INTERNAL_ERROR",
}
"""What each library says in a capture, in a RuntimeError: cuFFT of a new plan, the others of a new handle."""

OPERANDS = 3
"""How many tensors of a call, from the first, PyTorch looks at before it asks for a handle: none may be empty."""


def use(state: State, call: Call) -> None:
    """An operator takes its library's handle; raises the library's error where that must be made during a capture."""
    card, index = call.plan.card, call.device
    library: str | None = card.library
    if not library or (index, library, state.memory.handle()) in state.memory.handles:
        return
    operands = call.tensors()[:OPERANDS]
    if not all(tensor.numel() for tensor in operands) or (card.one_matrix and operands[0].dim() > 2):
        return
    if card.kind.name == "convolution":
        library = _convolves_with(call.named())
    if library is not None:
        make(state, library, index)


def make(state: State, library: str, index: int) -> None:
    """A handle of this thread's on a device, unless it has one."""
    key = index, library, state.memory.handle()
    if key not in state.memory.handles:
        refuse(state, library, index)
        state.memory.handles.add(key)


def refuse(state: State, library: str, index: int) -> None:
    """Raise the library's error, and make the capture invalid, where this thread's stream on the device is captured."""
    capture = state.local.streams[index].capture
    if capture is not None and capture.forbids(state.thread_of_cuda()):
        capture.valid = False
        raise RuntimeError(REFUSED[library])


def _convolves_with(named: Keywords) -> str | None:
    """The library of a convolution; none where a kernel of PyTorch's own may take one filter a channel."""
    if named["input"].shape[1] > 1 == named["weight"].shape[1] and not named["transposed"]:
        return None
    return CUDNN if torch._C._get_cudnn_enabled() else CUBLAS
