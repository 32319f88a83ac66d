"""Operators that PyTorch computes on GPUs alone."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.sparse import to_sparse_semi_structured

import understudy
from understudy.errors import UnsupportedError
from understudy.seam.torch.kernels.gpu_alone import GPU_ALONE


def test_two_to_four_sparsity_is_refused_in_one_sentence() -> None:
    with understudy.emulate("A100"):
        weight = torch.tensor([0, 0, 1, 1]).tile((128, 32)).half().cuda()
        with pytest.raises(UnsupportedError, match=r"_cslt_compress only on GPUs.*: keep the weight dense"):
            to_sparse_semi_structured(weight)


def test_without_data_its_shapes_do() -> None:
    with understudy.emulate("A100", no_data=True):
        x = torch.ones(4, 8, device="cuda")
        kept, mask = torch.ops.aten._fused_dropout(x, 0.5)
        assert kept.shape == mask.shape == x.shape
        assert kept.is_cuda


@pytest.mark.parametrize("name", sorted(GPU_ALONE))
def test_the_cpu_has_no_kernel_of_them(name: str) -> None:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    for overload in packet.overloads() if packet is not None else []:
        full = name if overload == "default" else f"{name}.{overload}"
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")


def test_symmetric_memory_is_refused_in_one_sentence() -> None:
    with understudy.emulate("2xA100"):
        symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        with pytest.raises(UnsupportedError, match=r"has no symmetric memory.*use the collectives"):
            symmetric.empty(8, device="cuda")
