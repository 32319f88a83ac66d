"""`sort`, `topk`, `kthvalue` and `median` of equal elements: in which order, and which of them, CUDA's kernels give.

An unstable sort of up to 32 elements is bitonic, which exchanges equals; longer ones keep their order, as the CPU's
sort does. `topk` gathers what is beyond the k-th in order of index, then its equals, of which the first; so it leaves
them unless they are to be sorted, which is done as above. A few rows of 100,000 elements or more are sorted whole.

NaN comes last. CUDA's sort of 129 elements or more puts NaN with a sign first (pytorch/pytorch#190781), which is not
imitated: a CPU gives the NaN that it computes a sign, and a GPU none, so those of a device cannot be told apart here.

`kthvalue` gives the first of the elements that equal its value (pytorch/pytorch#165762). Before PyTorch 2.10, and of
`median` still, each writes its place and any may be the last; the first of them was (pytorch/pytorch#161841).

Sources: aten/src/ATen/native/cuda/Sort.cu (sortKeyValueInplace, SmallBitonicSort), bitonicSort.cuh, TensorTopK.cpp and
TensorTopK.cu. Seen in pytorch/pytorch#127196, and for 32 equals in "Stealing User Prompts from Mixture of Experts".
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.plans.arguments import OpOverload

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
aten = torch.ops.aten
BITONIC = 32
LONG_ROW, FEW_ROWS = 100_000, 10


def sort(tensor: Tensor, dim: int = -1, descending: bool = False) -> Pair:
    """aten::sort."""
    return sort_stable(tensor, stable=False, dim=dim, descending=descending)


def sort_stable(tensor: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    """The same with `stable`, which leaves the order of equals."""
    values, indices = aten.sort.stable._op(tensor, stable=True, dim=dim, descending=descending)
    if stable or tensor.is_meta or tensor.dim() == 0 or not 1 < tensor.shape[dim] <= BITONIC:
        return values, indices
    values, indices = values.movedim(dim, -1), indices.movedim(dim, -1)
    ranks = _ranks(values)
    if ranks is None:
        return values.movedim(-1, dim), indices.movedim(-1, dim)
    places = torch.arange(tensor.shape[dim], device="cpu").expand(indices.shape)
    order = _bitonic(torch.empty_like(ranks).scatter_(-1, indices, ranks), places)
    return _gathered(tensor, order, dim)


def argsort(tensor: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    """aten::argsort."""
    return sort_stable(tensor, stable=stable, dim=dim, descending=descending)[1]


def topk(tensor: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    """aten::topk."""
    values, indices = aten.topk.default._op(tensor, k, dim, largest, sorted)
    if tensor.is_meta or tensor.dim() == 0 or not values.numel() or (sorted and not _tied(tensor, values, dim)):
        return values, indices
    ordered, places = aten.sort.stable._op(tensor, stable=True, dim=dim, descending=largest)
    size = tensor.shape[dim]
    ordered, places = (found.movedim(dim, -1)[..., :k] for found in (ordered, places))
    if not (size >= LONG_ROW and tensor.numel() // size <= FEW_ROWS) and (not sorted or k <= BITONIC):
        ranks = _ranks(ordered)
        ranks = torch.arange(k, device="cpu").expand(places.shape) if ranks is None else ranks
        gathered = (places + size * (ranks == ranks[..., -1:])).argsort(-1)
        places, ranks = places.gather(-1, gathered), ranks.gather(-1, gathered)
        places = _bitonic(ranks, places) if sorted else places
    return _gathered(tensor, places, dim)


def _tied(tensor: Tensor, values: Tensor, dim: int) -> bool:
    """Whether some of the k are equal, or the last of them to one that is left out."""
    values = values.movedim(dim, -1)
    last = values[..., -1:]
    here, everywhere = (_same(found, last).sum(-1) for found in (values, tensor.movedim(dim, -1)))
    return bool((here != everywhere).any()) or _ranks(values) is not None


def _same(one: Tensor, other: Tensor) -> Tensor:
    same = one == other
    return same | (one.isnan() & other.isnan()) if one.is_floating_point() else same


def _ranks(ordered: Tensor) -> Tensor | None:
    """For each element of sorted rows how many smaller values there are, or greater; None where all differ."""
    same = _same(ordered[..., 1:], ordered[..., :-1])
    if not bool(same.any()):
        return None
    return torch.nn.functional.pad((~same).cumsum(-1), (1, 0))


def _gathered(tensor: Tensor, places: Tensor, dim: int) -> Pair:
    indices = places.movedim(-1, dim).contiguous()
    return tensor.gather(dim, indices), indices


def _bitonic(ranks: Tensor, places: Tensor) -> Tensor:
    """The places of rows of up to 32 elements, sorted by their ranks as the network does."""
    size = ranks.shape[-1]
    missing = (0, BITONIC - size)
    pad = torch.nn.functional.pad
    rows = [pad(ranks, missing), pad(places, missing), pad(torch.ones_like(ranks), missing)]
    threads = torch.arange(BITONIC // 2, device="cpu")
    length = 2
    while length <= BITONIC:
        backwards = (threads & (length // 2) != 0) if length < BITONIC else torch.zeros_like(threads, dtype=torch.bool)
        stride = length // 2
        while stride:
            first = 2 * threads - (threads & (stride - 1))
            one, other = ([row[..., at] for row in rows] for at in (first, first + stride))
            ahead = ((one[0] < other[0]) & (one[2] == 1)) | (other[2] == 0)  # what is missing goes to the end
            for row, left, right in zip(rows, one, other, strict=True):
                row[..., first] = torch.where(ahead == backwards, right, left)
                row[..., first + stride] = torch.where(ahead == backwards, left, right)
            stride //= 2
        length *= 2
    return rows[1][..., :size]


def sort_into(tensor: Tensor, dim: int = -1, descending: bool = False, *, values: Tensor, indices: Tensor) -> Pair:
    """aten::sort with `out`."""
    aten.sort.values._op(tensor, dim, descending, values=values, indices=indices)  # which checks and resizes them
    return _put(sort(tensor, dim, descending), values, indices)


def sort_stable_into(
    tensor: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False, values: Tensor, indices: Tensor
) -> Pair:
    """The same with `stable`."""
    given = {"stable": stable, "dim": dim, "descending": descending}
    aten.sort.values_stable._op(tensor, **given, values=values, indices=indices)
    return _put(sort_stable(tensor, stable=stable, dim=dim, descending=descending), values, indices)


def topk_into(
    tensor: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, values: Tensor, indices: Tensor
) -> Pair:
    """aten::topk with `out`."""
    aten.topk.values._op(tensor, k, dim, largest, sorted, values=values, indices=indices)
    return _put(topk(tensor, k, dim, largest, sorted), values, indices)


def kthvalue(tensor: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    """aten::kthvalue."""
    return _first(tensor, aten.kthvalue.default._op(tensor, k, dim, keepdim), dim, keepdim)


def kthvalue_into(
    tensor: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, values: Tensor, indices: Tensor
) -> Pair:
    """The same with `out`."""
    aten.kthvalue.values._op(tensor, k, dim, keepdim, values=values, indices=indices)
    return _first(tensor, (values, indices), dim, keepdim)


def medians(operator: OpOverload) -> Callable[..., Pair]:
    """aten::median or aten::nanmedian with a dimension."""

    def run(tensor: Tensor, dim: int, keepdim: bool = False, **out: Tensor) -> Pair:
        return _first(tensor, operator._op(tensor, dim, keepdim, **out), dim, keepdim)

    return run


def _first(tensor: Tensor, found: Pair, dim: int, keepdim: bool) -> Pair:
    """The values, and the first place of each in its row."""
    values, indices = found
    if tensor.is_meta or tensor.dim() == 0 or not tensor.numel():
        return values, indices
    same = _same(tensor, values if keepdim else values.unsqueeze(dim))
    return values, indices.copy_(same.to(torch.uint8).argmax(dim, keepdim))


def _put(found: Pair, values: Tensor, indices: Tensor) -> Pair:
    return values.copy_(found[0]), indices.copy_(found[1])


RUN = {
    "aten::sort": sort,
    "aten::sort.values": sort_into,
    "aten::sort.stable": sort_stable,
    "aten::sort.values_stable": sort_stable_into,
    "aten::argsort.stable": argsort,
    "aten::topk": topk,
    "aten::topk.values": topk_into,
    "aten::kthvalue": kthvalue,
    "aten::kthvalue.values": kthvalue_into,
    "aten::median.dim": medians(aten.median.dim),
    "aten::median.dim_values": medians(aten.median.dim_values),
    "aten::nanmedian.dim": medians(aten.nanmedian.dim),
    "aten::nanmedian.dim_values": medians(aten.nanmedian.dim_values),
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
