"""Operators whose kernels PyTorch has for CUDA and not for the CPU, and that nothing here computes.

A GPU runs them, so they are refused with an error of ours, not with PyTorch's "Could not run".
"""

from __future__ import annotations

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.operators.card import stating
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload
from windtunnel.seam.torch.plans.plan import Plan, tensors_in
from windtunnel.seam.torch.tags import device_of

INSTEAD = {
    "sparse": "keep the weight dense where there is no GPU",
    "packed": "keep the weight in floating point where there is no GPU",
    "fused": "compute it by PyTorch's ordinary functions where there is no GPU",
}
"""What a program can do instead, by what the cards of such operators say."""

BLOCK_SCALES = {getattr(torch, name, None) for name in ("float8_e8m0fnu", "float8_e4m3fn")} - {None}
"""The types that MX and NVFP4 scales have, as far as this PyTorch knows them."""
ROW_WISE = 1
"""ScalingType.RowWise; every greater number is a recipe of blocks."""


def refuse(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Refuse one of them on a device; without data a shape is all that it needs to give."""
    if not dispatch.state.no_data and any(device_of(tensor) >= 0 for tensor in tensors_in((*args, *kwargs.values()))):
        raise UnsupportedError(
            f"PyTorch has a kernel for {plan.name} only on GPUs, so its values cannot be computed here: "
            f"{INSTEAD[plan.card.gpu_alone]}"
        )
    return dispatch.general(plan, func, args, kwargs)


def scaled_product(dispatch: Dispatch, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
    """Refuse a product with a scale for each block of an operand: the CPU's kernel calls those scales wrong."""
    blocks = _recipes_of_blocks(args) if plan.name == "aten::_scaled_mm_v2" else _scales_of_blocks(args)
    on_device = any(device_of(tensor) >= 0 for tensor in tensors_in((*args, *kwargs.values())))
    if blocks and on_device and not dispatch.state.no_data:
        raise UnsupportedError(
            f"PyTorch computes {plan.name} with a scale for each block only on GPUs, so its values cannot be computed "
            "here: give one scale for the tensor or for each row where there is no GPU"
        )
    return dispatch.general(plan, func, args, kwargs)


def _recipes_of_blocks(args: Arguments) -> bool:
    return any(recipe > ROW_WISE for recipe in (*args[3], *args[6]))


def _scales_of_blocks(args: Arguments) -> bool:
    """Whether scales have a block type's dtype, or the shape of blocks of 128 along the products' sum."""
    one, scales = args[0], args[2:4]
    if any(scale.dtype in BLOCK_SCALES for scale in scales):
        return True
    blocks = -(-one.shape[-1] // 128)
    shapes = [tuple(scale.shape) for scale in scales]
    return blocks > 1 and shapes[0][-1:] == (blocks,) and shapes[1][:1] == (blocks,)


HANDLERS = dict.fromkeys(stating("gpu_alone"), refuse) | dict.fromkeys(
    ("aten::_scaled_mm", "aten::_scaled_mm_v2"), scaled_product
)
"""Operators that PyTorch computes on GPUs alone, or with some arguments."""
