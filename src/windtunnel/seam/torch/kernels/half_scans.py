"""`cumsum` and `cumprod` of half precision: CUDA's kernels round each step, where the CPU's compute in float32.

Along an outer dimension a thread goes through its column. Along the last one a block scans twice as many elements as
its row has threads at once, by Sklansky's network, and begins with what the ones before came to. One row alone is
CUB's, whose order is that of each GPU's tuning and of its blocks' race: ours has tiles of 4,096 elements.

Source: aten/src/ATen/native/cuda/ScanUtils.cuh (`scan_dim`); seen in pytorch/pytorch#180150.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from windtunnel.seam.torch.plans.arguments import OpOverload, overload_of
from windtunnel.seam.torch.plans.halves import HALVES

Tensor = torch.Tensor
Combine = Callable[[Tensor, Tensor], Tensor]
aten = torch.ops.aten
TILE = 4096
LEAST, MOST = 4, 9
"""The binary logarithms of the fewest and the most threads of a row; a block has `1 << MOST`."""


def scan(func: OpOverload, combine: Combine) -> Callable[..., Tensor]:
    """The operator, with half precision results rounded as CUDA's kernels do."""
    kernel: Callable[..., Tensor] = func._op
    in_place = func._schema.name.endswith("_")

    def run(self: Tensor, dim: int, **kwargs: object) -> Tensor:
        out = kwargs.get("out")
        target = self if in_place else out
        wanted = kwargs.get("dtype") or (target.dtype if isinstance(target, Tensor) else self.dtype)
        if wanted not in HALVES or self.is_meta or not self.dim() or self.is_complex():
            return kernel(self, dim, **kwargs)
        if isinstance(out, Tensor) and out.dtype is not wanted:
            return kernel(self, dim, **kwargs)  # PyTorch's own error
        if not -self.dim() <= dim < self.dim() or not self.numel():
            return kernel(self, dim, **kwargs)
        made = scanned(self.to(wanted), dim % self.dim(), combine)
        if in_place:
            return self.copy_(made)
        return _maybe_resize_out(out, made.shape).copy_(made) if isinstance(out, Tensor) else made

    return run


def scanned(values: Tensor, dim: int, combine: Combine) -> Tensor:
    """What each place and all before it come to, one rounding a step."""
    size = values.shape[dim]
    if dim < values.dim() - 1 and values.numel() > size:
        columns = values.unbind(dim)
        found = [columns[0]]
        for column in columns[1:]:
            found.append(combine(found[-1], column))
        return torch.stack(found, dim)
    rows = values.movedim(dim, -1).reshape(-1, size)
    width = TILE if len(rows) == 1 else 2 << _threads(len(rows), size)
    blocks: list[Tensor] = []
    for block in rows.split(width, 1):
        first = block[:, :1] if not blocks else combine(block[:, :1], blocks[-1][:, -1:])
        blocks.append(_sklansky(torch.cat([first, block[:, 1:]], 1), combine))
    return torch.cat(blocks, 1).view(values.shape)


def _threads(rows: int, size: int) -> int:
    """The binary logarithm of a row's threads (`get_log_num_threads_x_inner_scan`)."""
    ratio = (size - 1).bit_length() - (rows - 1).bit_length()
    return min(max(LEAST, (MOST + ratio) // 2), MOST)


def _sklansky(block: Tensor, combine: Combine) -> Tensor:
    """Each second half of twice as many elements a step is combined with the last of the first half."""
    places = torch.arange(block.shape[1], device="cpu")
    step = 1
    while step < block.shape[1]:
        upper = (places // step) % 2 == 1
        before = (places // step) * step - 1
        block = torch.where(upper, combine(block, block[:, before.clamp(min=0)]), block)
        step *= 2
    return block


NAMES: dict[Combine, tuple[str, ...]] = {
    torch.add: ("cumsum.default", "cumsum.out", "cumsum_.default"),
    torch.mul: ("cumprod.default", "cumprod.out", "cumprod_.default"),
}


RUN = {func.name(): scan(func, combine) for combine, names in NAMES.items() for func in map(overload_of, names)}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
