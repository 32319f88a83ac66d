"""Which kernel PyTorch runs for `scaled_dot_product_attention` on a GPU: flash, memory efficient, cuDNN, or plain math.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend and the filters it calls), versions 2.6
to 2.14. The switches of `torch.backends.cuda` and `torch.nn.attention.sdpa_kernel` are PyTorch's own and are read here.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from windtunnel.gpus.gpu import Gpu
from windtunnel.seam.torch.plans.halves import HALVES
from windtunnel.seam.torch.tags import VERSION

C = torch._C
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
DEFAULT_ORDER = (FLASH, EFFICIENT, MATH, CUDNN)
CUDNN_ORDER = (CUDNN, FLASH, EFFICIENT, MATH)
NEWEST = (12, 1)
EFFICIENT_SHARES_HEADS = (2, 12)
"""The first PyTorch whose memory-efficient kernel takes fewer key heads than query heads."""
CUDNN_ROUNDS_DROPOUT = (2, 12)
"""The first PyTorch that gives cuDNN multiples of 1/16 alone as dropout's probability (pytorch/pytorch#174245)."""
CUDNN_TAKES_WIDE_HEADS = (2, 8)
"""The first PyTorch that gives cuDNN heads wider than 128, on Hopper."""


class Problem(NamedTuple):
    """One call of attention. `cudnn` is cuDNN's version as a number, `cuda` the CUDA version, `gqa` enable_gqa."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    gpu: Gpu
    cudnn: int
    cuda: tuple[int, int]
    gqa: bool = True

    @property
    def nested(self) -> bool:
        """Whether the texts have lengths of their own: PyTorch's Python checks their sizes, and causal masks fit."""
        return any(t.is_nested for t in (self.query, self.key, self.value))

    @property
    def trains(self) -> bool:
        """Whether a gradient will be asked for."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


def choose(problem: Problem) -> int | None:
    """MATH, FLASH, EFFICIENT or CUDNN; None where every kernel that fits is switched off."""
    return next((backend for backend in order(problem) if can_use(backend, problem)), None)


def can_use(backend: int, problem: Problem) -> bool:
    """Whether a kernel takes this call and is not switched off."""
    return bool(CAN_USE[backend](problem))


def order(problem: Problem) -> tuple[int, ...]:
    """The kernels in the order in which they are tried."""
    chosen = tuple(C._get_sdp_priority_order()) if hasattr(C, "_get_sdp_priority_order") else DEFAULT_ORDER
    chosen = tuple(dict.fromkeys(backend for backend in chosen if backend in CAN_USE))  # torch 2.6 names one twice
    return CUDNN_ORDER if chosen == DEFAULT_ORDER and _prefers_cudnn(problem) else chosen


def _prefers_cudnn(problem: Problem) -> bool:
    major, minor = problem.gpu.compute_capability
    if VERSION >= (2, 10):
        if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1" or problem.cudnn <= 91500:
            return False
        return major in (9, 10) and (problem.cuda >= (13, 0) or minor in (0, 3))
    if VERSION >= (2, 8):
        wanted = os.environ.get("TORCH_CUDNN_SDPA_PREFERRED") != "0"
        return wanted and problem.cudnn >= 90900 and major in (9, 10) and minor == 0
    return False


# ---------------------------------------------------------------------------------------------- conditions


def _shaped(problem: Problem) -> bool:
    """Four dimensions, no empty sequence, neighbours in the last dimension (the mask's too), one type."""
    tensors = (problem.query, problem.key, problem.value)
    if problem.nested:
        return all(t.dim() == 4 for t in tensors) and len({t.dtype for t in tensors}) == 1
    return (
        all(t.dim() == 4 and t.layout is torch.strided for t in tensors)
        and len({t.dtype for t in tensors}) == 1
        and len({t.shape[0] for t in tensors}) == 1
        and all(t.shape[2] > 0 and (t.stride(-1) == 1 or t.shape[-1] == 1) for t in tensors)
        and (problem.mask is None or problem.mask.stride(-1) == 1)
    )


def mask_fits_cudnn(problem: Problem) -> bool:
    """A mask without a gradient, of two dimensions or of four, each whole or 1 (check_attn_mask_shape)."""
    mask, query = problem.mask, problem.query
    if mask is None:
        return True
    whole = (*query.shape[:3], problem.key.shape[2])
    return (
        not mask.requires_grad
        and mask.dim() in (2, 4)
        and all(size in (1, full) for size, full in zip(mask.shape, whole[-mask.dim() :], strict=True))
    )


def cudnn_width(problem: Problem) -> int:
    """The widest heads that cuDNN's kernel takes."""
    wide = problem.gpu.compute_capability == (9, 0) and problem.cudnn >= 91000 and VERSION >= CUDNN_TAKES_WIDE_HEADS
    return 256 if wide else 128


def _heads(problem: Problem, shared: bool) -> bool:
    if problem.nested:
        return True
    query, key, value = (t.shape[1] for t in (problem.query, problem.key, problem.value))
    return query == key == value or (shared and problem.gqa and key == value and query % key == 0)


def _low_precision(problem: Problem) -> bool:
    return problem.query.dtype in (HALVES if problem.gpu.compute_capability >= (8, 0) else HALVES[:1])


def trains_narrow(problem: Problem) -> bool:
    """Whether the GPU is one on which flash attention trains no wide heads, and a gradient will be asked for."""
    capability = problem.gpu.compute_capability
    return problem.trains and ((8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= NEWEST)


def alignment(problem: Problem) -> int:
    """What the memory-efficient kernel's heads are a multiple of (minimum_gemm_alignment)."""
    capability, half = problem.gpu.compute_capability, problem.query.dtype in HALVES
    least = 4 if capability >= (8, 0) else 1
    if capability >= (8, 0) or (half and capability >= (7, 0)):
        least = max(least, 8 if half else 4)
    return least


def _flash(problem: Problem) -> bool:
    width, capability = problem.query.shape[-1], problem.gpu.compute_capability
    return (
        C._get_flash_sdp_enabled()
        and _shaped(problem)
        and problem.mask is None
        and problem.key.shape[-1] == problem.value.shape[-1] == width <= 256
        and (8, 0) <= capability <= NEWEST
        and (not trains_narrow(problem) or width <= 192 or (width > 224 and not problem.dropout))
        and (not problem.causal or problem.nested or problem.query.shape[2] == problem.key.shape[2])
        and _low_precision(problem)
        and _heads(problem, shared=True)
    )


def _efficient(problem: Problem) -> bool:
    capability, dtype = problem.gpu.compute_capability, problem.query.dtype
    multiple = alignment(problem)
    widths = problem.query.shape[-1], problem.key.shape[-1], problem.value.shape[-1]
    return (
        C._get_mem_efficient_sdp_enabled()
        and (5, 0) <= capability <= NEWEST
        and (dtype in (torch.float16, torch.float32) or (dtype == torch.bfloat16 and capability >= (8, 0)))
        and _shaped(problem)
        and widths[0] == widths[1]
        and all(width % multiple == 0 and width > 0 for width in widths)
        and _heads(problem, shared=VERSION >= EFFICIENT_SHARES_HEADS)
    )


def _cudnn(problem: Problem) -> bool:
    query, key, value = problem.query, problem.key, problem.value
    dropout = problem.dropout
    return (
        C._get_cudnn_sdp_enabled()
        and problem.cudnn >= 90000
        and not (dropout and 91100 < problem.cudnn < 91400)
        and _shaped(problem)
        and not (torch.are_deterministic_algorithms_enabled() and not C._get_deterministic_algorithms_warn_only())
        and _low_precision(problem)
        and (8, 0) <= problem.gpu.compute_capability <= NEWEST
        and (VERSION < CUDNN_ROUNDS_DROPOUT or dropout * 16 == int(dropout * 16))
        and _heads(problem, shared=True)
        and mask_fits_cudnn(problem)
        and max(query.shape[-1], value.shape[-1]) <= cudnn_width(problem)
        and query.shape[-1] % 8 == value.shape[-1] % 8 == 0
        and key.shape[2] != 1
        and not (dropout and query.shape[2] == 1)
    )


CAN_USE = {
    MATH: lambda problem: C._get_math_sdp_enabled(),
    FLASH: _flash,
    EFFICIENT: _efficient,
    CUDNN: _cudnn,
}
