"""The libraries that a CUDA build of PyTorch brings: cuDNN and its switches, and recurrent weights in one buffer."""

from __future__ import annotations

from typing import Any

import torch
import torch.backends.cudnn.rnn

from understudy.seam.patching import Patch
from understudy.seam.torch.dispatch import Dispatch
from understudy.seam.torch.operators import Plan
from understudy.seam.torch.state import State
from understudy.seam.torch.tags import device_of, storage_of, tag_of

CUDNN_VERSIONS = (
    ((10, 0), 7605),
    ((11, 0), 8005),
    ((11, 7), 8500),
    ((12, 0), 8902),
    ((12, 4), 90100),
    ((12, 8), 90800),
)
"""The cuDNN that PyTorch's wheels carry, by the first CUDA version that has it (torch.backends.cudnn.version())."""


RNN_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
"""cudnnRNNMode_t."""


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

    def choose(backend: Any) -> None:
        chosen[0] = backend

    return [Patch(torch._C, get, lambda: chosen[0]), Patch(torch._C, put, choose)]


def flatten_weights(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::_cudnn_rnn_flatten_weight: all weights of a recurrent layer become views of one new buffer."""
    weights = args[0]
    device = tag_of(weights[0]).device
    total = sum(weight.numel() for weight in weights)
    buffer = torch.empty(total, dtype=weights[0].dtype, device="cpu")
    dispatch.state.place(storage_of(buffer), device)
    position = 0
    for weight in weights:
        piece = buffer[position : position + weight.numel()].view(weight.shape)
        position += weight.numel()
        piece.copy_(weight)
        weight.set_(piece)
    return buffer


def convolution(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::cudnn_convolution, called by name: the convolution that it is."""
    tensor, weight, padding, stride, dilation, groups = args[:6]
    with dispatch.parts:
        return torch.ops.aten.convolution.default(
            tensor, weight, None, stride, padding, dilation, False, [0] * len(padding), groups
        )


def transposed(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::cudnn_convolution_transpose, called by name."""
    tensor, weight, padding, output_padding, stride, dilation, groups = args[:7]
    with dispatch.parts:
        return torch.ops.aten.convolution.default(
            tensor, weight, None, stride, padding, dilation, True, output_padding, groups
        )


def sampled(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::cudnn_grid_sampler, called by name: bilinear, zeros outside, corners aligned."""
    with dispatch.parts:
        return torch.ops.aten.grid_sampler.default(*args, 0, 0, True)


def sampled_backward(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::cudnn_grid_sampler_backward."""
    tensor, grid, gradient = args
    with dispatch.parts:
        return torch.ops.aten.grid_sampler_2d_backward.default(gradient, tensor, grid, 0, 0, True, [True, True])


LSTM_KEEPS = 5
"""Numbers that cuDNN's LSTM keeps for the backward pass of each step, text and unit of a layer: four gates and the
cell. pytorch#2895 prints its reserve space for 4 layers of 320 units and 25,000 steps x texts: 736,000,000 bytes, which
are 4 x 25,000 x 320 x (4 x 5 + 3); the 3 are the outputs between the layers, which are tensors of their own here."""


def recurrent_layer(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::mkldnn_rnn_layer, the CPU's kernel of an LSTM's layer: what it keeps has the size of what cuDNN keeps."""
    device, floating = dispatch.scan(plan, func, args, kwargs)
    if device < 0:
        return dispatch.on_host(plan, func, args, kwargs, floating)
    for tensor in floating:
        dispatch.tag(tensor, device)
    out = dispatch.call(plan, func, args, kwargs, device)
    inputs, kept = args[0], out[3]
    if kept is not None and kept.numel():  # None or empty where nothing is trained
        units = inputs.numel() // inputs.shape[-1] * out[0].shape[-1]
        dispatch.state.place(storage_of(kept), device, LSTM_KEEPS * units * inputs.element_size())
    dispatch.tag(out, device)
    dispatch.submit(plan, func, args, kwargs, out, device, None)
    return out


HANDLERS = {
    "aten::_cudnn_rnn": recurrent_layer,
    "aten::_cudnn_rnn_flatten_weight": flatten_weights,
    "aten::cudnn_convolution": convolution,
    "aten::cudnn_grid_sampler": sampled,
    "aten::cudnn_grid_sampler_backward": sampled_backward,
    "aten::cudnn_convolution_transpose": transposed,
}
"""Operators that `Dispatch` hands on whole."""
