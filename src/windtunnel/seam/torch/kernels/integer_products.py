"""Products with integers: `torch._int_mm`, and weights of four bits in tensor cores' order (`_weight_int4pack_mm`).

`_int_mm` multiplies on the CPU what CUDA refuses. The two operators of four bits have no kernel for the CPU:
`_convert_weight_to_int4pack` packs [n, k / 2] bytes, whose higher half is the earlier number, into
[n / 8, k / (16 tiles), 32, tiles / 2] words; lane t of a tile of 8 x 16 holds row t / 4 and four columns. The product
decodes a weight as (number - 8) * scale + zero, rounded once to bfloat16, and sums in float32.

Sources: aten/src/ATen/native/cuda/int4mm.cu; `_int_mm_out_cuda` of aten/src/ATen/native/cuda/Blas.cpp. The order of
numbers is that of an H200's words (tests/conformance/hardware).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.kernels.attention_checks import UNTOLD
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result

Tensor = torch.Tensor
aten = torch.ops.aten
GROUPS = (32, 64, 128, 256)
TILES = (2, 4, 8)


def _require(holds: bool, condition: str) -> None:
    if not holds:
        raise RuntimeError(UNTOLD.format(condition))


def _pair_columns() -> Tensor:
    """[32, 4]: for each lane the bytes of two tiles of k, 16 bytes, that make its word."""
    lane = torch.arange(32, device="cpu")[:, None] % 4
    return lane + torch.tensor([0, 4, 8, 12], device="cpu")


def packed(weight: Tensor, tiles: int) -> Tensor:
    """aten::_convert_weight_to_int4pack."""
    _require(weight.dim() == 2, "in.dim() == 2")
    _require(weight.dtype is torch.uint8, "in.dtype() == at::kByte")
    _require(weight.is_contiguous(), "in.is_contiguous()")
    _require(tiles in TILES, "innerKTiles == 2 || innerKTiles == 4 || innerKTiles == 8")
    n, half = weight.shape
    _require(half * 2 % (tiles * 16) == 0, "isEvenDivisor(in.size(1) * 2, innerKTiles * kKTileSize)")
    high, wide = -(-n // 8), half * 2 // (tiles * 16)
    if weight.is_meta:
        return torch.empty(high, wide, 32, tiles // 2, dtype=torch.int32, device="meta")
    rows = torch.zeros(8 * high, half, dtype=torch.uint8, device="cpu")
    rows[:n] = weight
    lanes = torch.arange(32, device="cpu")
    # [row tile, outer tile, word, row, byte of 16], then each lane's row and four bytes
    bytes_of = rows.view(high, 8, wide, tiles // 2, 16).permute(0, 2, 3, 1, 4)
    of_lanes = bytes_of[:, :, :, (lanes // 4)[:, None], _pair_columns()].long()
    words = torch.zeros(of_lanes.shape[:-1], dtype=torch.long, device="cpu")
    for place in range(4):
        words |= (of_lanes[..., place] & 15) << (16 + 4 * place)
        words |= (of_lanes[..., place] >> 4) << (4 * place)
    return words.permute(0, 1, 3, 2).to(torch.int32).contiguous()


def unpacked(weight: Tensor) -> Tensor:
    """[n, k] of the numbers 0 to 15 that `packed` was given."""
    high, wide, _, words = weight.shape
    lanes = torch.arange(32, device="cpu")
    given = weight.permute(0, 1, 3, 2).long()
    numbers = torch.zeros(high, wide, words, 8, 32, dtype=torch.long, device="cpu")
    for place in range(4):
        column = 2 * (lanes % 4 + 4 * place)
        numbers[:, :, :, lanes // 4, column] = given >> (4 * place) & 15
        numbers[:, :, :, lanes // 4, column + 1] = given >> (16 + 4 * place) & 15
    return numbers.permute(0, 3, 1, 2, 4).reshape(8 * high, wide * words * 32)


def product(x: Tensor, weight: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """aten::_weight_int4pack_mm."""
    tiles = weight.shape[3] * 2 if weight.dim() == 4 else 0
    _require(tiles in TILES, "B_innerKTiles == 2 || B_innerKTiles == 4 || B_innerKTiles == 8")
    _require(x.dtype is torch.bfloat16, "A.dtype() == at::kBFloat16")
    _require(x.is_contiguous(), "A.is_contiguous()")
    _require(x.dim() == 2, "A.dim() == 2")
    _require(weight.dtype is torch.int32, "B.dtype() == at::kInt")
    _require(weight.is_contiguous(), "B.is_contiguous()")
    k, n = x.shape[1], 8 * weight.shape[0]
    _require(weight.shape[1] == k // (tiles * 16), "B.size(1) == k / (B_innerKTiles * kKTileSize)")
    _require(weight.shape[2] == 32, "B.size(2) == 32")
    condition = "qGroupSize == 32 || qGroupSize == 64 || qGroupSize == 128 || qGroupSize == 256"
    _require(group in GROUPS, condition)
    _require(scales_and_zeros.dim() == 3, "qScaleAndZeros.dim() == 3")
    whole = -(-k // 16) * 16
    condition = "kTiles * kKTileSize >= qGroupSize && isEvenDivisor(kTiles * kKTileSize, qGroupSize)"
    _require(whole >= group and whole % group == 0, condition)
    _require(scales_and_zeros.shape[1] == n, "qScaleAndZeros.size(1) == n")
    _require(scales_and_zeros.shape[2] == 2, "qScaleAndZeros.size(2) == 2")
    if x.is_meta:
        return torch.empty(len(x), n, dtype=torch.bfloat16, device="meta")
    scale, zero = (part.float().repeat_interleave(group, 0)[:k].t() for part in scales_and_zeros.unbind(2))
    decoded = ((unpacked(weight)[:, :k] - 8).float() * scale + zero).bfloat16()
    return torch.mm(x.float(), decoded.float().t()).bfloat16()


def multiplied(one: Tensor, two: Tensor, *, out: Tensor | None = None) -> object:
    """aten::_int_mm, with the sizes that cuBLASLt takes."""
    for name, matrix in (("self", one), ("mat2", two)):
        if matrix.dim() != 2:
            raise RuntimeError(f"Expected {name} to be of dimension 2 but got {matrix.dim()}")
    if one.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {one.shape[0]}")
    _is_multiple("self.size(1)", one.shape[1])
    if one.shape[1] != two.shape[0]:
        words = f"self.size(1) needs to match mat2.size(0) but got {one.shape[1]} and {two.shape[0]}"
        raise RuntimeError(words)
    _is_multiple("mat2.size(1)", two.shape[1])
    return aten._int_mm.default._op(one, two) if out is None else aten._int_mm.out._op(one, two, out=out)


def _is_multiple(name: str, size: int) -> None:
    if size == 0 or size % 8:
        raise RuntimeError(f"{name} needs to be greater than 0 and a multiple of 8, but got {size}")


FUNCTIONS: dict[str, Callable[..., object]] = {
    "aten::_convert_weight_to_int4pack": packed,
    "aten::_weight_int4pack_mm": product,
    "aten::_int_mm": multiplied,
}


class WithIntegers(SubstituteKernel):
    """One of these functions in its operator's place."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        return FUNCTIONS[self.func._schema.name](*args, **kwargs)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    return WithIntegers(func)


HANDLERS, VALUES = substituted(FUNCTIONS, _kernel)
"""Operators with handlers of their own, and what computes them in a replay."""
