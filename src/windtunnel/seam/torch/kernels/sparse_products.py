"""Products with a sparse factor: the dtypes that CUDA's kernels take, and what those call themselves.

A product of a COO and a dense tensor takes no half precision, nor under autocast, which the CPU computes; those of
compressed tensors take it, and the CPU's do not. Sources, in aten/src/ATen/native/sparse/cuda: SparseBlasLegacy.cpp
(`addmm_sparse_cuda`), SparseCUDATensorMath.cu (`bmm_sparse_cuda`), and SparseBlasImpl.cpp for compressed ones, of which
it leaves products of blocks in half precision to a kernel in Triton.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.plans.dtypes import FLOATING, Dtypes, refusal
from windtunnel.seam.torch.plans.halves import HALVES, in_float32

aten = torch.ops.aten
Tensor = torch.Tensor
Product = Callable[..., object]
FULL = FLOATING.difference(HALVES)
LOWERED = (*HALVES, torch.float32)
BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, *BLOCKS)
OF_BLOCKS = ((torch.sparse_bsr, torch.strided), (torch.strided, torch.sparse_bsc))
"""The layouts of factors for which there is a kernel by blocks."""


def _kernel(first: Tensor, second: Tensor) -> Dtypes | None:
    """What computes the product of two tensors of which one is sparse at least, and the dtypes that it takes.

    None of layouts that have none, which PyTorch refuses in words of its own.
    """
    layouts, is_vector = {first.layout, second.layout}, second.dim() == 1
    if torch.sparse_coo in layouts:
        if torch.strided not in layouts:
            return None
        return "bmm_sparse_cuda" if first.dim() == 3 else "addmm_sparse_cuda", FULL
    if not layouts.isdisjoint(BLOCKS):
        if (first.layout, second.layout) not in OF_BLOCKS:
            return None
        return ("block_sparse_mv", FULL) if is_vector else ("block_sparse_mm", FLOATING)
    if is_vector:
        return "addmv_out_sparse_csr_cuda_impl", FLOATING
    return "spmm" if torch.strided in layouts else "spgemm", FLOATING


def product(kernel: Product, place: int, dims: tuple[int, int]) -> Product:
    """The kernel, whose factors are its arguments `place` and the next, with CUDA's dtypes where one is sparse.

    Both kinds of kernels look at shapes before they look at dtypes, and at neither where a factor has no entries.
    """
    halves = in_float32(kernel)

    def run(*args: Tensor, **scales: complex) -> object:
        first, second = args[place : place + 2]
        sparse = [factor for factor in (first, second) if factor.layout in SPARSE]
        if sparse and (first.dim(), second.dim()) == dims and first.dtype is second.dtype:
            fit = first.shape[-1] == second.shape[max(0, dims[1] - 2)] and all(factor._nnz() for factor in sparse)
            known = _kernel(first, second)
            if fit and known is not None and first.dtype not in known[1]:
                raise refusal(known[0], first.dtype)
        return halves(*args, **scales)

    return run


def lowered(run: Product) -> Product:
    """`torch.sparse.mm`, which autocast passes by, and whose kernel calls `addmm`, which it does not.

    It is on below the gradient, too. Source: `_sparse_addmm` of aten/src/ATen/native/sparse/SparseTensorMath.cpp.
    """

    def lower(*tensors: Tensor, **scales: complex) -> object:
        if torch.is_autocast_enabled("cuda") and all(tensor.dtype in LOWERED for tensor in tensors):
            tensors = tuple(tensor.to(torch.get_autocast_dtype("cuda")) for tensor in tensors)
        return run(*tensors, **scales)

    return lower


MATRICES, VECTOR, BATCHES = (2, 2), (2, 1), (3, 3)
PRODUCTS = (
    ("mm", 0, MATRICES), ("mv", 0, VECTOR), ("bmm", 0, BATCHES), ("addmm", 1, MATRICES), ("addmm_", 1, MATRICES),
    ("_sparse_addmm", 1, MATRICES), ("addmv", 1, VECTOR), ("addmv_", 1, VECTOR),
)  # fmt: skip
LAYOUTS = {f"aten::{name}": product(getattr(aten, name).default._op, place, dims) for name, place, dims in PRODUCTS}
LAYOUTS["aten::_sparse_addmm"] = lowered(LAYOUTS["aten::_sparse_addmm"])
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
