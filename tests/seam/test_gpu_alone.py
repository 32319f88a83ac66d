"""Operators that PyTorch computes on GPUs alone."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
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


@pytest.mark.parametrize("name", sorted(stating("gpu_alone")))
def test_the_cpu_has_no_kernel_of_them(name: str) -> None:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    for overload in packet.overloads() if packet is not None else []:
        full = name if overload == "default" else f"{name}.{overload}"
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")


def eights(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, device="cuda").to(torch.float8_e4m3fn)


def by_blocks_of_32() -> torch.Tensor:
    scale = torch.ones(128 * 4, device="cuda").to(torch.float8_e8m0fnu)
    return torch._scaled_mm(eights(128, 128), eights(128, 128).t(), scale, scale, out_dtype=torch.bfloat16)


def by_blocks_of_16() -> torch.Tensor:
    half_bytes = torch.zeros(128, 64, device="cuda", dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    scale = eights(128, 8).flatten()
    return torch._scaled_mm(half_bytes, half_bytes.t(), scale, scale, out_dtype=torch.bfloat16)


def by_blocks_of_128() -> torch.Tensor:
    rows, blocks = torch.ones(256, 2, device="cuda"), torch.ones(2, 2, device="cuda")
    return torch._scaled_mm(eights(256, 256), eights(256, 256).t(), rows, blocks, out_dtype=torch.bfloat16)


def by_recipe() -> torch.Tensor:
    scale, recipe = torch.ones(128 * 4, device="cuda").to(torch.float8_e8m0fnu), F.ScalingType.BlockWise1x32
    swizzle = F.SwizzleType.SWIZZLE_32_4_4
    return F.scaled_mm(eights(128, 128), eights(128, 128).t(), scale, recipe, scale, recipe, swizzle, swizzle)


@pytest.mark.parametrize("product", [by_blocks_of_16, by_blocks_of_32, by_blocks_of_128, by_recipe])
def test_scales_of_blocks_are_refused_in_one_sentence(product: Callable[[], torch.Tensor]) -> None:
    with windtunnel.emulate("B200"), pytest.raises(UnsupportedError, match="with a scale for each block only on GPUs"):
        product()


@pytest.mark.parametrize("shapes", [((), ()), ((32, 1), (1, 48))])
def test_scales_of_tensors_and_rows_are_computed(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with windtunnel.emulate("B200"):
        ones = [torch.full(shape, 2.0, device="cuda") for shape in shapes]
        out = torch._scaled_mm(eights(32, 256), eights(48, 256).t(), *ones, out_dtype=torch.bfloat16)
        assert out.cpu().eq(1024).all()


def test_scales_of_no_recipe_are_wrong_as_pytorch_says() -> None:
    with windtunnel.emulate("B200"):
        scale = torch.ones(3, device="cuda")
        with pytest.raises(ValueError, match="Invalid scaling configuration"):
            torch._scaled_mm(eights(32, 256), eights(48, 256).t(), scale, scale, out_dtype=torch.bfloat16)


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
