"""The libraries that a CUDA build of PyTorch brings: cuDNN and its switches, and recurrent weights in one buffer."""

from __future__ import annotations

import torch
import torch.backends.cudnn.rnn

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels.recurrent_space import RNN_MODES
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

CUDNN_VERSIONS = (
    ((10, 0), 7605),
    ((11, 0), 8005),
    ((11, 7), 8500),
    ((12, 0), 8902),
    ((12, 4), 90100),
    ((12, 6), 90501),
    ((12, 8), 91002),
    ((13, 0), 91900),
)
"""The cuDNN that PyTorch's wheels carry, by the first CUDA version that has it (torch.backends.cudnn.version()).

Source: the requirements of torch 2.6.0 (12.4), 2.7.1 (12.6), 2.8.0 to 2.10.0 (12.8) and 2.11.0 (13.0). Later wheels of
the same CUDA carry later ones (9.20 with 2.12.0, 9.24 with 2.14.1), which changes nothing that is emulated.
"""


class Nvtx:
    """Ranges for profilers that nobody watches: only their depth and numbers are kept."""

    def __init__(self) -> None:
        self._depth = 0
        self._ranges = 0

    def rangePushA(self, message: str) -> int:  # noqa: N802 - NVTX's own name
        """Open a nested range; returns its depth from 0."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:  # noqa: N802
        """Close the innermost range; returns its depth."""
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        """Open a range that may end anywhere; returns its number."""
        self._ranges += 1
        return self._ranges

    def rangeEnd(self, number: int) -> None:  # noqa: N802
        """Close a range."""

    def markA(self, message: str) -> None:  # noqa: N802
        """Mark a moment."""

    def deviceRangeStart(self, message: str, stream: int) -> object:  # noqa: N802
        """Open a range on a stream."""
        return message

    def deviceRangeEnd(self, handle: object, stream: int) -> None:  # noqa: N802
        """Close a range on a stream."""


def patches(state: State) -> list[Patch]:
    """`torch.backends.cudnn` says that cuDNN is there."""
    cudnn = torch.backends.cudnn
    version = max((v for cuda, v in CUDNN_VERSIONS if cuda <= state.cuda_version), default=CUDNN_VERSIONS[0][1])
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    def is_acceptable(tensor: torch.Tensor) -> bool:
        return bool(torch._C._get_cudnn_enabled()) and device_of(tensor) >= 0 and tensor.dtype in floats

    return [
        Patch(cudnn, "is_available", lambda: True),
        Patch(cudnn, "version", lambda: version),
        Patch(cudnn, "is_acceptable", is_acceptable),
        Patch(torch._C, "_has_cudnn", True),
        Patch(torch, "_use_cudnn_rnn_flatten_weight", lambda: True),
        Patch(torch.backends.cudnn.rnn, "get_cudnn_mode", RNN_MODES.__getitem__),
        Patch(torch.cuda.nvtx, "_nvtx", Nvtx()),
        *_preferred("linalg"),
        *_preferred("blas"),
    ]


def _preferred(kind: str) -> list[Patch]:
    """`torch.backends.cuda.preferred_linalg_library` and its kin: a choice that changes no value and no time here."""
    get, put = f"_get_{kind}_preferred_backend", f"_set_{kind}_preferred_backend"
    if not (hasattr(torch._C, get) and hasattr(torch._C, put)):
        return []  # older versions lack some
    chosen = [getattr(torch._C, get)()]

    def choose(backend: object) -> None:
        chosen[0] = backend

    return [Patch(torch._C, get, lambda: chosen[0]), Patch(torch._C, put, choose)]


def _find_engine(dispatch: Dispatch, tensor: torch.Tensor, benchmark: bool) -> None:
    """cuDNN has no engine for bfloat16 before Ampere; `torch.convolution` does not ask it there.

    Source: supportsBFloat16ConvolutionWithCuDNNv8 of aten/src/ATen/cuda/detail/CUDAHooks.cpp, and run_single_conv of
    native/cudnn/Conv_v8.cpp for the text.
    """
    device = device_of(tensor)
    if device < 0 or tensor.dtype is not torch.bfloat16:
        return
    if dispatch.machine.devices[device].gpu.compute_capability < (8, 0):
        way = "FIND" if benchmark else "GET"
        raise RuntimeError(f"{way} was unable to find an engine to execute this computation")


def convolution(dispatch: Dispatch, call: Call) -> object:
    """aten::cudnn_convolution, called by name: the convolution that it is."""
    tensor, weight, padding, stride, dilation, groups = call.args[:6]
    _find_engine(dispatch, tensor, call.args[6])
    with dispatch.parts:
        return torch.ops.aten.convolution.default(
            tensor, weight, None, stride, padding, dilation, False, [0] * len(padding), groups
        )


def transposed(dispatch: Dispatch, call: Call) -> object:
    """aten::cudnn_convolution_transpose, called by name."""
    tensor, weight, padding, output_padding, stride, dilation, groups = call.args[:7]
    _find_engine(dispatch, tensor, call.args[7])
    with dispatch.parts:
        return torch.ops.aten.convolution.default(
            tensor, weight, None, stride, padding, dilation, True, output_padding, groups
        )


def sampled(dispatch: Dispatch, call: Call) -> object:
    """aten::cudnn_grid_sampler, called by name: bilinear, zeros outside, corners aligned."""
    with dispatch.parts:
        return torch.ops.aten.grid_sampler.default(*call.args, 0, 0, True)


def sampled_backward(dispatch: Dispatch, call: Call) -> object:
    """aten::cudnn_grid_sampler_backward."""
    tensor, grid, gradient = call.args
    with dispatch.parts:
        return torch.ops.aten.grid_sampler_2d_backward.default(gradient, tensor, grid, 0, 0, True, [True, True])


HANDLERS = {
    "aten::cudnn_convolution": convolution,
    "aten::cudnn_grid_sampler": sampled,
    "aten::cudnn_grid_sampler_backward": sampled_backward,
    "aten::cudnn_convolution_transpose": transposed,
}
"""Operators with handlers of their own."""
