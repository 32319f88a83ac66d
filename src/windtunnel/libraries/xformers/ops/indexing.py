"""`xformers.ops.indexing`: rows chosen and added in one kernel each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def scaled_index_add(
    input: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None = None, alpha: float = 1.0
) -> Tensor:  # fmt: skip
    """`input` [rows, tokens, width] with `alpha * scaling * source` added, in place, to the rows of `index`.

    Of such a scaling [width] the library's kernel multiplies in place; here that is a kernel of its own.
    """
    return input.index_add_(0, index, source if scaling is None else source * scaling, alpha=alpha)


def index_select_cat(sources: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    """The rows `indices` of each source [rows, width], all numbers behind one another."""
    return torch.cat([one.index_select(0, index.long()).flatten() for one, index in zip(sources, indices, strict=True)])
