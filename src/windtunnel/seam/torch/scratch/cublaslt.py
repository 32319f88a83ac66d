"""The workspace of cuBLASLt: its size, and which products take one."""

from __future__ import annotations

import os

import torch

from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need
from windtunnel.seam.torch.tags import VERSION

LT_PERSISTENT, LT_UNIFIED = (2, 9), (2, 12)
"""The first PyTorch that keeps cuBLASLt's workspace (pytorch#156495), and that uses cuBLAS's (#168175, #175879)."""


def lt_workspace_bytes() -> int:
    """The workspace of cuBLASLt: CUBLASLT_WORKSPACE_SIZE in KiB, 1 MiB without it."""
    text = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return (int(text) if text.isdigit() else 1024) << 10


def fuses_bias(call: Demand) -> bool:
    """Whether `addmm` goes through cuBLASLt with the bias in its epilogue, as PyTorch decides it."""
    bias, left, right = call.inputs[:3]
    return (
        call.get("beta", 1) == 1
        and bias.dim() == 1
        and right.dim() == 2
        and bias.numel() == right.shape[1]
        and bias.is_contiguous()
        and min(*right.shape) > 1
        and left.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    )


def addmm(call: Demand) -> Need:
    """Each call takes a workspace of its own; from 2.9 on the handle keeps it, and from 2.12 on it is cuBLAS's."""
    return Need((lt_workspace_bytes(),), kept=VERSION >= LT_PERSISTENT) if fuses_bias(call) else NOTHING
