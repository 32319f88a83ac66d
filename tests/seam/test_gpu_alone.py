"""Operators that PyTorch computes on GPUs alone."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.sparse import to_sparse_semi_structured

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.operators.card import stating


def test_two_to_four_sparsity_is_refused_in_one_sentence() -> None:
    with windtunnel.emulate("A100"):
        weight = torch.tensor([0, 0, 1, 1]).tile((128, 32)).half().cuda()
        with pytest.raises(UnsupportedError, match=r"_cslt_compress only on GPUs.*: keep the weight dense"):
            to_sparse_semi_structured(weight)


def test_without_data_its_shapes_do() -> None:
    with windtunnel.emulate("A100", no_data=True):
        x = torch.ones(4, 8, device="cuda")
        kept, mask = torch.ops.aten._fused_dropout(x, 0.5)
        assert kept.shape == mask.shape == x.shape
        assert kept.is_cuda


def test_the_cpu_has_no_kernel_of_them() -> None:
    packets = {name: getattr(torch.ops.aten, name.removeprefix("aten::"), None) for name in stating("gpu_alone")}
    overloads = [(name, one) for name, packet in packets.items() if packet is not None for one in packet.overloads()]
    full = [name if overload == "default" else f"{name}.{overload}" for name, overload in overloads]
    assert not [name for name in full if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")]


def test_symmetric_memory_is_refused_in_one_sentence() -> None:
    with windtunnel.emulate("2xA100"):
        symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        with pytest.raises(UnsupportedError, match=r"has no symmetric memory.*use the collectives"):
            symmetric.empty(8, device="cuda")


def direct_storage(path: Path) -> None:
    torch.cuda.gds.gds_register_buffer(torch.ones(3, device="cuda").untyped_storage())


def direct_file(path: Path) -> None:
    torch.cuda.gds.GdsFile(str(path / "file"), os.O_CREAT | os.O_RDWR)


def green_context(path: Path) -> None:
    torch.cuda.green_contexts.GreenContext.create(num_sms=8, device_id=0)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (direct_storage, "by cuFile"),
        (direct_file, "by cuFile"),
        *([(green_context, "divides a GPU's multiprocessors")] if hasattr(torch.cuda, "green_contexts") else []),
    ],
)
def test_what_only_a_driver_does_is_refused(use: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    with windtunnel.emulate("H100"), pytest.raises(UnsupportedError, match=message):
        use(tmp_path)
