"""Sums and products of half precision that round each step on CUDA and once on the CPU, or the other way round.

- What `scatter_add`, `index_add` and their kin combine goes by atomics of the elements' own type, each of which rounds:
  4,096 ones make 2,048 in float16. Their order is not fixed; we take that of the indices. Deterministic ones go by
  `index_put`.
- `index_put` that accumulates sorts its indices. Slices of up to a warp's elements it sums in float32; longer ones it
  rounds after each, as the CPU does.
- `prod` multiplies in float32, and the gradient of `embedding_bag` sums in it.

Sources: ScatterGatherKernel.cu, Indexing.cu (index_put_with_sort_kernel), ReduceSumProdKernel.cu, EmbeddingBag.cu (in
aten/src/ATen/native/cuda) and TensorAdvancedIndexing.cpp. Seen in pytorch/pytorch#156173. What else CUDA sums in
float32 has `widened` on its card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from windtunnel.seam.torch.kernels.complex_half import in_complex64
from windtunnel.seam.torch.plans.arguments import OpOverload, overload_of
from windtunnel.seam.torch.plans.halves import HALVES, narrow, wide

Tensor = torch.Tensor
Indices = Sequence[Tensor | None]
Kernel = Callable[..., Tensor]
aten = torch.ops.aten
WARP = 32
MAXIMUM = 2
"""The mode of an embedding's bags whose gradient goes by atomics."""
SUM, MEAN, PROD = "sum", "mean", "prod"
STEPWISE = {"add": SUM, "multiply": PROD, SUM: SUM, MEAN: MEAN, PROD: PROD}
"""How `scatter` and `scatter_reduce` call what rounds each step; the least and the greatest round nothing."""


def scattered(func: OpOverload) -> Kernel:
    """A scatter that may combine, as atomics of half precision do it."""
    kernel: Kernel = func._op
    keeps_self = not func._schema.name.endswith("_")
    default = SUM if "scatter_add" in func._schema.name else None

    def run(self: Tensor, dim: int, index: Tensor, src: Tensor | float, *rest: object, **kwargs: object) -> Tensor:
        given = default or STEPWISE.get(str(rest[0] if rest else kwargs.get("reduce")))
        fixed = torch.are_deterministic_algorithms_enabled() and given is not PROD
        if given is None or fixed or self.dtype not in HALVES or self.is_meta:
            return kernel(self, dim, index, src, *rest, **kwargs)
        before = self if keeps_self and "out" not in kwargs else self.clone()
        made = kernel(self, dim, index, src, *rest, **kwargs)  # which raises PyTorch's errors
        if not index.numel():
            return made
        include = bool(kwargs.get("include_self", True))
        return made.copy_(combined(before, dim, index, src, given, include))

    return run


def combined(self: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str, include_self: bool) -> Tensor:
    """What falls on each place, one after the other and rounded each time."""
    places = _places(self, dim, index)
    source = src if isinstance(src, Tensor) else torch.full(index.shape, src, dtype=self.dtype, device="cpu")
    if source.dim() and index.dim():
        source = source[tuple(map(slice, index.shape))]
    source = source.reshape(-1)[: places.numel()]
    flat = self.clone(memory_format=torch.contiguous_format).view(-1)
    if not include_self:
        flat.index_fill_(0, places, 1 if how is PROD else 0)
    if how is PROD:
        return flat.index_reduce_(0, places, source, "prod").view(self.shape)
    flat.put_(places, source, accumulate=True)
    if how is MEAN:  # its numbers of elements are a half precision sum as well
        count = torch.full_like(flat, int(include_self)).put_(places, torch.ones_like(source), accumulate=True)
        flat.div_(count.masked_fill_(count == 0, 1))
    return flat.view(self.shape)


def _places(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Where each index points to among all elements of a tensor, counted as if it were contiguous."""
    if not self.dim() or not index.dim():
        return index.reshape(-1).long()
    dim %= self.dim()
    found = torch.zeros((), dtype=torch.int64, device="cpu")
    for axis, size in enumerate(index.shape):
        along = torch.arange(size, device="cpu").view(-1, *(1,) * (index.dim() - axis - 1))
        found = found * self.shape[axis] + (index.long() if axis == dim else along)
    return found.reshape(-1)


def put(func: OpOverload) -> Kernel:
    """`index_put`, which sums short slices in float32."""
    kernel: Kernel = func._op
    in_place = func._schema.name.endswith("_")

    def run(
        self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, *rest: bool, **kwargs: Tensor
    ) -> Tensor:
        halves = self.dtype in HALVES and values.dtype is self.dtype and not self.is_meta
        if not (accumulate and halves and _slice(self, indices) <= WARP):
            return kernel(self, indices, values, accumulate, *rest, **kwargs)
        made: Tensor = aten.index_put.default(wide(self), indices, wide(values), True).to(self.dtype)
        if in_place:
            return self.copy_(made)
        return _maybe_resize_out(kwargs["out"], made.shape).copy_(made) if kwargs else made

    return run


def added(func: OpOverload) -> Kernel:
    """`index_add`, which goes by atomics, and by `index_put` where algorithms are to be deterministic."""
    kernel: Kernel = func._op

    def run(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: complex = 1, **kwargs: Tensor) -> Tensor:
        if self.dtype not in HALVES or self.is_meta or source.dtype is not self.dtype or not self.dim():
            return kernel(self, dim, index, source, alpha=alpha, **kwargs)
        before = self.clone()
        made = kernel(self, dim, index, source, alpha=alpha, **kwargs)  # which raises PyTorch's errors
        if not source.numel():
            return made
        shares = source if alpha == 1 else source * alpha
        dim %= self.dim()
        if not torch.are_deterministic_algorithms_enabled() or _slice(self, [None] * dim + [index]) > WARP:
            everywhere = index.reshape(-1, *(1,) * (self.dim() - dim - 1)).expand(source.shape or (1,))
            return made.copy_(combined(before, dim, everywhere, shares, SUM, True))
        return made.copy_(aten.index_add.default(wide(before), dim, index, wide(shares)))

    return run


def _slice(self: Tensor, indices: Indices) -> int:
    """How many elements lie side by side for one index: those of the dimensions after it, or of all without one."""
    indexed: list[bool] = []
    for index in indices:
        mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        indexed += [True] * index.dim() if index is not None and mask else [index is not None]
    indexed += [False] * (self.dim() - len(indexed))
    chosen = [axis for axis, is_indexed in enumerate(indexed) if is_indexed]
    adjacent = not chosen or chosen[-1] - chosen[0] == len(chosen) - 1
    after = range(chosen[-1] + 1, self.dim()) if adjacent and chosen else range(self.dim())
    size = 1
    for axis in after:
        size *= 1 if indexed[axis] else self.shape[axis]
    return size


def multiplied(kernel: Callable[..., object]) -> Callable[..., object]:
    """`prod`, whose half precision numbers are multiplied in float32."""

    def run(self: Tensor, *args: object, **kwargs: object) -> object:
        out = kwargs.get("out")
        wanted = kwargs.get("dtype") or (out.dtype if isinstance(out, Tensor) else self.dtype)
        if wanted not in HALVES or self.is_meta or not self.is_floating_point():
            return kernel(self, *args, **kwargs)
        made = aten.prod(wide(self.to(wanted)), *args).to(wanted)
        if not isinstance(out, Tensor) or not torch.can_cast(made.dtype, out.dtype):
            return kernel(self, *args, **kwargs) if isinstance(out, Tensor) else made
        return _maybe_resize_out(out, made.shape).copy_(made)

    return run


def summed_by_bag(func: OpOverload) -> Callable[..., object]:
    """The gradient of an embedding's bags, which is one of segments in float32 but for the bags' maxima."""
    kernel: Callable[..., object] = func._op
    mode = next(place for place, argument in enumerate(func._schema.arguments) if argument.name == "mode")

    def run(grad: Tensor, *args: object) -> object:
        if grad.dtype not in HALVES or grad.is_meta or args[mode - 1] == MAXIMUM:
            return kernel(grad, *args)
        return narrow(kernel(wide(grad), *map(wide, args)), grad.dtype)

    return run


SCATTERS = (
    "scatter_add.default", "scatter_add.out", "scatter_add_.default", "scatter.reduce", "scatter.reduce_out",
    "scatter_.reduce", "scatter.value_reduce", "scatter.value_reduce_out", "scatter_.value_reduce",
    "scatter_reduce.two", "scatter_reduce.two_out", "scatter_reduce_.two",
)  # fmt: skip
PUTS = ("index_put.default", "index_put.out", "index_put_.default", "_index_put_impl_.default",
        "_unsafe_index_put.default")  # fmt: skip
ADDITIONS = ("index_add.default", "index_add.out", "index_add_.default")
BAGS = ("_embedding_bag_backward.default", "_embedding_bag_dense_backward.default")
PRODUCTS = ("prod.default", "prod.dim_int", "prod.int_out", "prod.out")


RUN: dict[str, Callable[..., object]] = {
    **{func.name(): scattered(func) for func in map(overload_of, SCATTERS)},
    **{func.name(): put(func) for func in map(overload_of, PUTS)},
    **{func.name(): added(func) for func in map(overload_of, ADDITIONS)},
    **{func.name(): summed_by_bag(func) for func in map(overload_of, BAGS)},
    **{func.name(): multiplied(in_complex64(func)) for func in map(overload_of, PRODUCTS)},
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
