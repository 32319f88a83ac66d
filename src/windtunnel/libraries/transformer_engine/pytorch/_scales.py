"""Numbers of 8 bits with their scales, and how scales follow from the largest numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from windtunnel.described import kernel
from windtunnel.libraries import unanswered

from ..common.recipe import LIBRARY, DelayedScaling, Recipe

Tensor = torch.Tensor
BLOCK = 32
NEED_NO_TRANSPOSE = (10, 11, 13)
"""Major numbers of compute capabilities whose products take factors of 8 bits in any order
(`is_non_tn_fp8_gemm_supported` of transformer_engine/pytorch/utils.py)."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


class Quantized(NamedTuple):
    """A matrix in 8 bits: by rows, and its transpose by rows, with the factors that give its numbers back."""

    rows: Tensor
    row_scale: Tensor
    columns: Tensor
    column_scale: Tensor


@kernel(
    "transformer_engine::quantize",
    like="aten::mul",
    define="(Tensor x, Tensor scale, Tensor(a!) amax, ScalarType dtype, bool both) -> (Tensor, Tensor, Tensor)",
)
def _quantize(x, scale, amax, dtype, both):  # type: ignore[no-untyped-def]
    """(numbers by rows, the transpose or nothing, the inverse of the scale); writes the largest number."""
    wide = x.float()
    amax.copy_(wide.abs().amax().reshape(amax.shape))
    rows = (wide * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)
    return rows, rows.t().contiguous() if both else rows.new_empty(0), scale.reciprocal()


@kernel(
    "transformer_engine::current_scale",
    like="aten::amax",
    define="(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
)
def _current_scale(x, dtype):  # type: ignore[no-untyped-def]
    """(the scale of a tensor by its own largest number, that number)."""
    amax = x.float().abs().amax().reshape(1)
    return torch.where(amax > 0, LARGEST[dtype] / amax, 1.0).clamp(max=torch.finfo(torch.float32).max), amax


def _by_blocks(wide: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(numbers, exponents of each 32 of a row as cuBLAS lays them out): the least power of two that reaches all."""
    blocks = wide.unflatten(-1, (-1, BLOCK))
    least = blocks.abs().amax(-1) / LARGEST[dtype]
    mantissa, exponent = torch.frexp(least)
    exponents = torch.where(least > 0, (exponent - (mantissa == 0.5).int()).float(), -127.0).clamp(-127, 127)
    numbers = (blocks * torch.exp2(-exponents)[..., None]).clamp(-LARGEST[dtype], LARGEST[dtype])
    scales = torch.exp2(exponents).to(torch.float8_e8m0fnu).view(torch.uint8)
    rows, columns = scales.shape
    padded = scales.new_zeros(-(-rows // 128) * 128, -(-columns // 4) * 4)
    padded[:rows, :columns] = scales
    tiles = padded.view(-1, 4, 32, padded.shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    return numbers.flatten(-2).to(dtype).contiguous(), tiles.flatten().contiguous().view(torch.float8_e8m0fnu)


@kernel(
    "transformer_engine::quantize_by_blocks",
    like="aten::mul",
    define="(Tensor x, ScalarType dtype, bool both) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _quantize_by_blocks(x, dtype, both):  # type: ignore[no-untyped-def]
    """MXFP8: (numbers by rows, their scales, the transpose or nothing, its scales)."""
    wide = x.float()
    none = wide.new_empty(0)
    return *_by_blocks(wide, dtype), *(_by_blocks(wide.t(), dtype) if both else (none.to(dtype), none))


@kernel(
    "transformer_engine::amax_and_scale_update",
    like="aten::_foreach_mul_",
    define="(Tensor(a!)[] histories, Tensor(b!)[] scales, bool most_recent, float largest, int margin) -> ()",
)
def _update(histories, scales, most_recent, largest, margin):  # type: ignore[no-untyped-def]
    for history, scale in zip(histories, scales, strict=True):
        amax = history[0] if most_recent else history.amax(0)
        new = largest / amax / 2**margin
        new = torch.where((amax > 0) & amax.isfinite(), new, scale).clamp(max=torch.finfo(torch.float32).max)
        scale.copy_(new)
        history.copy_(history.roll(-1, 0))
        history[0].zero_()


class Scales:
    """The scales of a layer's tensors: three for each product forward, two backward."""

    def __init__(self, recipe: Recipe, products: int, device: torch.device, group: object) -> None:
        self.recipe, self.group = recipe, group
        if not isinstance(recipe, DelayedScaling):
            return
        if callable(recipe.amax_compute_algo) or recipe.scaling_factor_compute_algo is not None:
            unanswered(LIBRARY, "a recipe with functions of its own", 'say amax_compute_algo "max" or "most_recent"')
        sizes = (3 * products, 2 * products)
        length = recipe.amax_history_len
        self.scale = [torch.ones(size, dtype=torch.float32, device=device) for size in sizes]
        self.history = [torch.zeros(length, size, dtype=torch.float32, device=device) for size in sizes]

    def quantize(self, x: Tensor, backward: bool, slot: int, dtype: torch.dtype, both: bool) -> Quantized:
        """A matrix in 8 bits by the layer's recipe."""
        if self.recipe.mxfp8():
            return Quantized(*torch.ops.transformer_engine.quantize_by_blocks(x, dtype, both))
        if isinstance(self.recipe, DelayedScaling):
            scale, amax = self.scale[backward][slot : slot + 1], self.history[backward][0, slot : slot + 1]
        else:
            scale, amax = torch.ops.transformer_engine.current_scale(x, dtype)
        any_order = torch.cuda.get_device_capability()[0] in NEED_NO_TRANSPOSE
        rows, columns, inverse = torch.ops.transformer_engine.quantize(x, scale, amax, dtype, both and not any_order)
        return Quantized(rows, inverse, rows.t() if both and any_order else columns, inverse)


def renew(of: list[Scales], forward: bool) -> None:
    """New scales from the largest numbers, which ranks tell one another; one kernel for all layers."""
    recipe = of[0].recipe
    if not isinstance(recipe, DelayedScaling):
        return
    histories = [one.history[not forward] for one in of]
    distributed = torch.distributed
    if recipe.reduce_amax and distributed.is_initialized() and distributed.get_world_size(of[0].group) > 1:  # type: ignore[arg-type]
        amaxes = torch.cat([history[0] for history in histories])
        distributed.all_reduce(amaxes, distributed.ReduceOp.MAX, of[0].group)  # type: ignore[arg-type]
        for history, part in zip(histories, amaxes.split([history.shape[1] for history in histories]), strict=True):
            history[0].copy_(part)
    largest = recipe.fp8_format.value[not forward]
    most_recent = recipe.amax_compute_algo == "most_recent"
    with torch.no_grad():
        torch.ops.transformer_engine.amax_and_scale_update(
            histories, [one.scale[not forward] for one in of], most_recent, largest, recipe.margin
        )
