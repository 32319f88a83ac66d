"""`mode`: which of several values that occur as often CUDA's kernels give, and where they say that it is.

Up to 2,048 elements a block sorts them, two in each thread. Of runs that are as long, its reduction keeps the lower
lane at each step, of lanes 16, 8, 4, 2 and 1 apart, and then of warps: so the order is that of their numbers with the
bits reversed. It gives the value's last place. Above, the least value and its first place.

Sources: aten/src/ATen/native/cuda/TensorModeKernel.cu and .cuh, block_reduce.cuh, TensorMode.cpp. Seen in
pytorch/pytorch#90261.
"""

from __future__ import annotations

from functools import cache

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
IN_A_BLOCK = 2048
WARP, BITS = 32, 5


def mode(tensor: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """aten::mode, of a device's tensor."""
    on_cpu = aten.mode.default._op(tensor, dim, keepdim)
    if tensor.dim() == 0 or tensor.shape[dim] <= 1 or tensor.is_meta or not tensor.numel():
        return on_cpu[0], on_cpu[1]
    if tensor.is_floating_point() and bool(tensor.isnan().any()):
        return on_cpu[0], on_cpu[1]  # which no order sorts
    values, places = _found(tensor.movedim(dim, -1))
    shape = on_cpu[0].shape
    return values.movedim(-1, dim).reshape(shape), places.movedim(-1, dim).reshape(shape)


def mode_into(
    tensor: Tensor, dim: int = -1, keepdim: bool = False, *, values: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with `out`."""
    aten.mode.values._op(tensor, dim, keepdim, values=values, indices=indices)  # which checks and resizes them
    found = mode(tensor, dim, keepdim)
    return values.copy_(found[0]), indices.copy_(found[1])


def _found(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(values, places), each of one element a row."""
    size = rows.shape[-1]
    ordered, places = rows.sort(-1).values, torch.arange(size, device="cpu")
    begins = torch.ones(ordered.shape, dtype=torch.bool, device="cpu")
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    repeats = places - torch.where(begins, places, 0).cummax(-1).values
    longest = repeats == repeats.amax(-1, keepdim=True)
    turns = _turns(size) if size <= IN_A_BLOCK else places
    values = ordered.gather(-1, torch.where(longest, turns, size + IN_A_BLOCK).argmin(-1, keepdim=True))
    if size <= IN_A_BLOCK:
        return values, torch.where(rows == values, places, 0).amax(-1, keepdim=True)
    return values, torch.where(rows == values, places, size).amin(-1, keepdim=True)


@cache
def _turns(size: int) -> Tensor:
    """For each place of the sorted elements, how soon the block's reduction prefers it to its equals."""

    def reversed_bits(number: int) -> int:
        return int(f"{number:0{BITS}b}"[::-1], 2)

    threads = [place // 2 for place in range(size)]
    keys = [(reversed_bits(thread // WARP) * WARP + reversed_bits(thread % WARP)) * 2 for thread in threads]
    ranks = torch.tensor([key + place % 2 for place, key in enumerate(keys)], device="cpu")
    return ranks.argsort().argsort()


RUN = {"aten::mode": mode, "aten::mode.values": mode_into}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
