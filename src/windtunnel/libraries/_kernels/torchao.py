"""torchao's binary for Blackwell: the cast to MXFP8 along the columns, which trainings in MXFP8 launch.

Source: torchao 0.18.0, csrc/cuda/mx_kernels/mxfp8_extension.cpp (its checks and layouts) and mxfp8_quantize.cuh (its
scales), torchao/prototype/mx_formats/kernels.py (the schema).
"""

from __future__ import annotations

import torch

from windtunnel.described import kernel

Tensor = torch.Tensor
BLOCK = 32
LARGEST = {"rceil": 448.0, "floor": 256.0}
"""By what a block's largest size is divided: the largest number of e4m3, or the largest power of two in it."""
NAN = 255
"""The scale of a block that has one."""


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _exponents(size: Tensor, *, up: bool) -> Tensor:
    """Powers of two as e8m0 has them, of the next one below, or above (cuda_fp8.hpp, __nv_cvt_float_to_e8m0)."""
    bits = size.view(torch.int32)
    found = bits >> 23
    beyond = torch.where(found == 0, bits > 0x400000, (bits & 0x7FFFFF) > 0) & (bits < 0x7F800000)
    return found + beyond if up else found


@kernel("torchao::mxfp8_quantize", like="aten::copy_")
def quantize(
    x: Tensor, rowwise: bool, colwise: bool, scale_dim_x: int, scale_dim_y: int, fp8_format: str, scaling_mode: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nothing twice, and [rows, columns] in e4m3 with a scale for 32 rows of a column, both column after column."""
    _check(not rowwise, "rowwise scaling is not supported yet")
    _check(x.is_contiguous(), "input must be contiguous")
    _check(x.dim() == 2, "input must be 2D")
    _check(x.dtype in (torch.float32, torch.bfloat16), "Input must be float32, float16, or bfloat16")
    _check(colwise, "At least one of rowwise or colwise must be true")
    _check(fp8_format == "e4m3", f"fp8_format must be 'e4m3', got: {fp8_format}")
    rows, columns = x.shape
    _check(rows >= BLOCK and rows % BLOCK == 0, "rows must be a multiple of 32")
    _check(columns >= BLOCK and columns % BLOCK == 0, "cols must be a multiple of 32")
    none, no_scales = x.new_empty(0, dtype=torch.float8_e4m3fn), x.new_empty(0, dtype=torch.float8_e8m0fnu)
    if x.is_meta:
        out = x.new_empty(columns, rows, dtype=torch.float8_e4m3fn).t()
        return none, out, no_scales, x.new_empty(rows // BLOCK, columns, dtype=torch.float8_e8m0fnu).t()
    blocks = x.float().view(rows // BLOCK, BLOCK, columns)
    largest = blocks.abs().amax(1)
    exponents = _exponents(largest * (1 / LARGEST[scaling_mode]), up=scaling_mode == "rceil")
    by = torch.where(exponents == NAN, torch.nan, torch.exp2(127.0 - exponents.float()))
    cast = (blocks * by[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(rows, columns)
    return none, cast.t().contiguous().t(), no_scales, exponents.to(torch.uint8).view(torch.float8_e8m0fnu).t()
