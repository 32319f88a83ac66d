"""Products of 8-bit and 4-bit matrices with scales (`torch._scaled_mm`): by tensor, row, block, MXFP8, MXFP4, NVFP4.

Values are those of the definition: numbers are decoded, products summed in float32, scaled, and rounded once to the
result's type; an 8-bit result is clamped to its type's range, as cuBLASLt converts it. The CPU's kernel of PyTorch
refuses scales of blocks and takes layouts and types that CUDA refuses. Tensor cores of Hopper and Ada keep 14 bits of a
sum of 8-bit products where this keeps 24, so results there differ in their last digits
(tests/conformance/hardware has an H200's): docs/coverage.md says by how much.

Sources: aten/src/ATen/native/cuda/ScaledBlas.cpp; "Narrow precision data types usage" and "1D block scaling factors
layout" of cuBLAS's documentation; OCP's Microscaling Formats, version 1.0.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels import scaled_checks as checks
from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

Tensor = torch.Tensor
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The sixteen numbers of four bits."""
BLOCK = {checks.BY_16: 16, checks.BY_32: 32, checks.BY_128: 128, checks.SQUARE: 128}
"""The numbers along the sum that share a scale."""


def named(func: OpOverload, args: Arguments, kwargs: Keywords) -> Keywords:
    """A call's arguments by name, defaults included."""
    arguments = func._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    return {one.name: given.get(one.name, one.default_value) for one in arguments}


def device_in(args: Arguments, kwargs: Keywords) -> int:
    """The device of a call's tensors, or a negative number."""
    return max((device_of(tensor) for tensor in tensors_in((*args, *kwargs.values()))), default=-1)


def decoded(matrix: Tensor) -> Tensor:
    """[rows, length] in float32; the two numbers of a byte lie along the dimension whose elements are neighbours."""
    if matrix.dtype is not checks.FOUR:
        return matrix.float()
    if matrix.stride(-1) != 1:
        return decoded(matrix.mT).mT
    numbers = matrix.view(torch.uint8)
    pair = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)
    return torch.tensor(E2M1, device="cpu")[pair.long()]


def unswizzled(scale: Tensor, rows: int, blocks: int) -> Tensor:
    """[rows, blocks] in float32, of scales that lie in tiles of 128 x 4, a tile as 32 x 4 x 4."""
    high, wide = checks.ceil_div(rows, 128), checks.ceil_div(blocks, 4)
    tiles = scale.float().reshape(high, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(128 * high, 4 * wide)[:rows, :blocks]


def product(one: Tensor, two: Tensor, scales: checks.Scales) -> Tensor:
    """The scaled product [m, n] in float32 of [m, k] and [k, n]."""
    first, second = scales.recipe
    a, b = decoded(one), decoded(two)
    if first in BLOCK and first not in (checks.BY_16, checks.BY_32):
        return _by_blocks(a, b, scales)
    if first in BLOCK:
        a = a * _spread(scales.both[0], a, first)
        b = (b.mT * _spread(scales.both[1], b.mT, second)).mT
        made = torch.mm(a, b)
        return made if scales.whole is None else made * (scales.whole[0] * scales.whole[1])
    return torch.mm(a, b) * scales.both[0] * scales.both[1]


def _spread(scale: Tensor, matrix: Tensor, recipe: int) -> Tensor:
    """The scale of each number of [rows, length]."""
    rows, length = matrix.shape
    blocks = checks.ceil_div(length, BLOCK[recipe])
    return unswizzled(scale, rows, blocks).repeat_interleave(BLOCK[recipe], 1)[:, :length]


def _by_blocks(a: Tensor, b: Tensor, scales: checks.Scales) -> Tensor:
    """Each block of 128 along the sum is summed, scaled and added, as Hopper's kernels promote it."""
    sides = [
        _of_rows(scale, rows, recipe == checks.SQUARE)
        for scale, rows, recipe in (
            (_by_rows(scales.both[0], len(a), scales.recipe[0]), len(a), scales.recipe[0]),
            (_by_rows(scales.both[1].t(), b.shape[1], scales.recipe[1]), b.shape[1], scales.recipe[1]),
        )
    ]
    made = torch.zeros(len(a), b.shape[1], device="cpu")
    for block, start in enumerate(range(0, a.shape[1], 128)):
        part = torch.mm(a[:, start : start + 128], b[start : start + 128])
        made += part * sides[0][:, block, None] * sides[1][:, block]
    return made


def _by_rows(scale: Tensor, rows: int, recipe: int) -> Tensor:
    """The scales with rows first: the second version gives those of squares, and all of the second operand, turned."""
    high = checks.ceil_div(rows, 128) if recipe == checks.SQUARE else rows
    return scale if scale.shape[0] == high else scale.t()


def _of_rows(scale: Tensor, rows: int, square: bool) -> Tensor:
    return scale.repeat_interleave(128, 0)[:rows] if square else scale


def rounded(made: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 result in its type; one of 8 bits is clamped to its range."""
    if dtype in checks.EIGHTS:
        most = torch.finfo(dtype).max
        made = made.clamp(-most, most)
    return made.to(dtype)


class ScaledProduct(SubstituteKernel):
    """A product whose scales are known to fit."""

    def __init__(self, func: OpOverload, scales: checks.Scales, dtype: torch.dtype) -> None:
        super().__init__(func)
        self.scales, self.dtype = scales, dtype

    def __call__(self, *args: object, **kwargs: object) -> object:
        arguments = named(self.func, args, kwargs)
        out: Tensor | None = arguments.get("out")
        result = self.computed(arguments["self"], arguments["mat2"], arguments["bias"], arguments.get("scale_result"))
        return result if out is None else out.resize_(result.shape).copy_(result)

    def computed(self, one: Tensor, two: Tensor, bias: Tensor | None, scale_result: Tensor | None) -> Tensor:
        """The values; without data their shape."""
        if one.is_meta or not one.numel() or not two.numel():
            return torch.zeros(one.shape[0], two.shape[1], dtype=self.dtype, device=one.device)
        result = product(one, two, self.scales)
        if bias is not None:
            result = result + bias.float()
        if scale_result is not None and self.dtype in checks.EIGHTS:
            result = result * scale_result
        return rounded(result, self.dtype)


def chosen(dispatch: Dispatch, call: Call) -> ScaledProduct:
    """The kernel of a call, which is refused where CUDA refuses it."""
    arguments = named(call.plan.func, call.args, call.kwargs)
    capability = dispatch.machine.devices[call.device].gpu.compute_capability
    one, two, bias, fast = arguments["self"], arguments["mat2"], arguments["bias"], arguments["use_fast_accum"]
    out: Tensor | None = arguments.get("out")
    stated: torch.dtype | None = arguments["out_dtype"]
    if out is not None and stated is not None and stated is not out.dtype:
        raise RuntimeError("out_dtype must match output matrix type")
    dtype = out.dtype if out is not None else stated
    if "recipe_a" in arguments:
        dtype = torch.bfloat16 if dtype is None and one.dtype is checks.FOUR else dtype or one.dtype
        scale, recipe, swizzle = (
            (arguments[f"{name}_a"], arguments[f"{name}_b"]) for name in ("scale", "recipe", "swizzle")
        )
        scales = checks.second_version(capability, one, two, scale, recipe, swizzle, bias, dtype, fast)
    else:
        pair = arguments["scale_a"], arguments["scale_b"]
        scales = checks.first_version(capability, one, two, *pair, bias, arguments["scale_result"], dtype, fast)
    return ScaledProduct(call.plan.func, scales, dtype or one.dtype)


def multiply(dispatch: Dispatch, call: Call) -> object:
    """A product on a device by its definition; one on the host by PyTorch's own kernel."""
    device = device_in(call.args, call.kwargs)
    if device < 0:
        return dispatch.general(call)
    dispatch.scan(call)
    call.device = device
    return dispatch.general(call.but(func=chosen(dispatch, call)))


def replayed(dispatch: Dispatch, call: Call) -> object:
    """The same in a graph's replay."""
    return dispatch.compute(call.but(func=chosen(dispatch, call)))


NAMES = ("aten::_scaled_mm", "aten::_scaled_mm_v2")
HANDLERS = dict.fromkeys(NAMES, multiply)
"""Operators with handlers of their own."""
VALUES = dict.fromkeys(NAMES, replayed)
"""What computes them in a replay."""
