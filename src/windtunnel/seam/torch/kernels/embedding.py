"""Embeddings: what their gradients need (CUDA sorts the indices, and sums up the rows of each in segments), and bags.

What `_embedding_bag` gives beside its result has other sizes on CUDA than on the CPU (aten/src/ATen/native/cuda/
EmbeddingBag.cu): the bag of each index always, the least size for what only a maximum needs. Its kernel takes the first
bag to begin at the first index, whatever `offsets` says, and asserts that no bag ends before it begins; the CPU refuses
the first and computes something else for the second.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.scratch.native import LONG, NATIVE, accumulator
from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row


def embedding_backward(call: Demand) -> Need:
    """Sorted and original indices, four lists of segments, and one float32 row of partial sums an index."""
    grad, indices = call.inputs[:2]
    count, width = indices.numel(), grad.shape[-1]
    if count <= 3072 and not call.get("scale_grad_by_freq"):
        return NOTHING
    lists = 6 + bool(call.get("scale_grad_by_freq"))
    row = accumulator(grad.dtype)
    return Need((*(LONG * count,) * lists, LONG, LONG, count * width * row))


SCRATCH = (
    Row(("embedding_dense_backward", "_embedding_bag_dense_backward"), embedding_backward,
        NATIVE + "Embedding.cu, EmbeddingBackwardKernel.cu"),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""


Bags = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
MAXIMUM = 2
"""The mode of `embedding_bag` that takes the largest."""


def bags_of_cuda(kernel: Callable[..., Bags]) -> Callable[..., Bags]:
    """`_embedding_bag` or its form without gradients, with CUDA's sizes and its own look at `offsets`."""

    def run(
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        *args: object,
        **kwargs: object,
    ) -> Bags:
        if weight.is_meta:
            return kernel(weight, indices, offsets, scale_grad_by_freq, mode, *args, **kwargs)
        offsets = _from_the_first(offsets)
        out, bags, sizes, largest = kernel(weight, indices, offsets, scale_grad_by_freq, mode, *args, **kwargs)
        if bags.numel() != indices.numel():
            places = torch.arange(indices.numel())
            bags = (torch.searchsorted(offsets.to(torch.int64), places, right=True) - 1).to(indices.dtype)
        if sizes.numel() != offsets.numel():
            sizes = torch.cat([sizes, sizes.new_zeros(offsets.numel() - sizes.numel())])
        return out, bags, sizes, largest if mode == MAXIMUM else largest.new_empty(0)

    return run


def _from_the_first(offsets: torch.Tensor) -> torch.Tensor:
    """(bags,) where each begins, as CUDA's kernel sees it.

    Raises:
        IndexError: a bag ends before it begins, which that kernel asserts.
    """
    if not offsets.numel():
        return offsets
    if offsets[0] != 0:
        offsets = offsets.index_fill(0, torch.tensor([0]), 0)
    if (offsets[1:] < offsets[:-1]).any():
        raise IndexError("offsets decrease: a bag ends before it begins")
    return offsets


RUN = {
    "aten::_embedding_bag": bags_of_cuda(torch.ops.aten._embedding_bag.default._op),
    "aten::_embedding_bag_forward_only": bags_of_cuda(torch.ops.aten._embedding_bag_forward_only.default._op),
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
