"""Embeddings: what their gradients need (CUDA sorts the indices, and sums up the rows of each in segments), and bags.

What `_embedding_bag` gives beside its result has other sizes on CUDA than on the CPU (aten/src/ATen/native/cuda/
EmbeddingBag.cu): the bag of each index always, the least size for what only a maximum needs.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.kernels.substitutes import Kernel, substituted
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.scratch.native import LONG, NATIVE, accumulator
from windtunnel.seam.torch.scratch.need import NOTHING, Call, Need, Row


def embedding_backward(call: Call) -> Need:
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


MAXIMUM = 2
"""The mode of `embedding_bag` that takes the largest."""


class OfBags(Kernel):
    """`_embedding_bag` with the sizes that CUDA's has."""

    def __call__(
        self,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        *args: object,
        **kwargs: object,
    ) -> object:
        out, bags, sizes, largest = self.func(weight, indices, offsets, scale_grad_by_freq, mode, *args, **kwargs)
        if bags.numel() != indices.numel():
            places = torch.arange(indices.numel())
            bags = (torch.searchsorted(offsets.to(torch.int64), places, right=True) - 1).to(indices.dtype)
        if sizes.numel() != offsets.numel():
            sizes = torch.cat([sizes, sizes.new_zeros(offsets.numel() - sizes.numel())])
        return out, bags, sizes, largest if mode == MAXIMUM else largest.new_empty(0)


def _bags(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    return func if args[0].is_meta else OfBags(func)


HANDLERS, VALUES = substituted(["aten::_embedding_bag", "aten::_embedding_bag_forward_only"], _bags)
"""Operators with handlers of their own, and what computes them in a replay."""
