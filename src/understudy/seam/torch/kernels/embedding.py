"""The gradient of an embedding: CUDA sorts the indices, and sums up the rows of each in segments."""

from __future__ import annotations

from understudy.seam.torch.scratch.native import LONG, NATIVE, accumulator
from understudy.seam.torch.scratch.need import NOTHING, Call, Need, Row


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
