"""Products with a sparse factor: what CUDA's kernels take, and the names by which they refuse the rest.

Expected: the sources that `kernels/sparse_products` names, and what people report of GNNs and autocast, such as
'"addmm_sparse_cuda" not implemented for 'Half''. pytorch/pytorch#103643 has the CPU's words for integers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
    pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated"),
]
HALF, LONG = torch.float16, torch.int64


def sparse(layout: str, dtype: torch.dtype) -> torch.Tensor:
    blocks = [(2, 2)] if layout.startswith("b") else []
    made: torch.Tensor = getattr(dense(dtype), f"to_sparse_{layout}")(*blocks)
    return made


def dense(dtype: torch.dtype) -> torch.Tensor:
    return (2 * torch.eye(4)).to(dtype).cuda()


def solved(layout: str, dtype: torch.dtype) -> object:
    return torch.triangular_solve(dense(dtype), sparse(layout, dtype))


def sampled(layout: str, dtype: torch.dtype) -> object:
    return torch.sparse.sampled_addmm(sparse(layout, dtype), dense(dtype), dense(dtype))


def batches(layout: str, dtype: torch.dtype) -> object:
    return torch.bmm(torch.stack([sparse(layout, dtype)] * 2), torch.stack([dense(dtype)] * 2))


KERNELS: tuple[tuple[str, str, torch.dtype, Callable[[str, torch.dtype], object]], ...] = (
    ("addmm_sparse_cuda", "coo", HALF, lambda *of: sparse(*of) @ dense(of[1])),
    ("addmm_sparse_cuda", "coo", LONG, lambda *of: dense(of[1]) @ sparse(*of)),
    ("addmm_sparse_cuda", "coo", torch.bfloat16, lambda *of: torch.sparse.mm(sparse(*of), dense(of[1]))),
    ("addmm_sparse_cuda", "coo", HALF, lambda *of: torch.addmm(dense(of[1]), sparse(*of), dense(of[1]))),
    ("addmm_sparse_cuda", "coo", LONG, lambda *of: sparse(*of) @ dense(of[1])[0]),
    ("bmm_sparse_cuda", "coo", HALF, batches),
    ("spmm", "csr", LONG, lambda *of: sparse(*of) @ dense(of[1])),
    ("spmm", "csc", torch.uint8, lambda *of: torch.sparse.mm(sparse(*of), dense(of[1]))),
    ("spgemm", "csr", LONG, lambda *of: sparse(*of) @ sparse(*of)),
    ("addmv_out_sparse_csr_cuda_impl", "csr", torch.int32, lambda *of: sparse(*of) @ dense(of[1])[0]),
    ("block_sparse_mm", "bsr", LONG, lambda *of: sparse(*of) @ dense(of[1])),
    ("block_sparse_mm", "bsc", LONG, lambda *of: dense(of[1]) @ sparse(*of)),
    ("block_sparse_mv", "bsr", HALF, lambda *of: sparse(*of) @ dense(of[1])[0]),
    ("triangular_solve_out_sparse_csr_cuda_impl", "csr", HALF, solved),
    ("block_sparse_triangular_solve_vec", "bsr", LONG, solved),
    ("sampled_addmm_out_sparse_csr", "csr", HALF, sampled),
)
NAMES = {HALF: "Half", torch.bfloat16: "BFloat16", LONG: "Long", torch.int32: "Int", torch.uint8: "Byte"}


@pytest.mark.parametrize(
    ("kernel", "layout", "dtype", "call"), KERNELS, ids=[f"{n}-{k}-{lay}" for n, (k, lay, *_) in enumerate(KERNELS)]
)
def test_what_a_kernel_does_not_take_is_refused_in_its_name(
    session: Session, kernel: str, layout: str, dtype: torch.dtype, call: Callable[[str, torch.dtype], object]
) -> None:
    with pytest.raises(RuntimeError) as caught:
        call(layout, dtype)
    assert str(caught.value) == f"\"{kernel}\" not implemented for '{NAMES[dtype]}'"


@pytest.mark.parametrize("call", [torch.mm, torch.sparse.mm])
def test_autocast_lowers_products_that_take_no_half_precision(session: Session, call: Callable[..., object]) -> None:
    adjacency, features = sparse("coo", torch.float32), torch.ones(4, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="\"addmm_sparse_cuda\" not implemented for 'Half'"):
        call(adjacency, features)
    with torch.autocast("cpu"):
        assert torch.sparse.mm(adjacency.cpu(), features.cpu()).dtype is torch.float32
    torch.sparse.mm(adjacency, features).sum().backward()
    assert features.grad is not None
    assert features.grad.tolist() == [[2.0] * 4] * 4


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_compressed_tensors_take_half_precision(session: Session, layout: str, dtype: torch.dtype) -> None:
    matrix, other = sparse(layout, dtype), dense(dtype) + 1
    for made in (matrix @ other, torch.sparse.mm(matrix, other), torch.stack([matrix @ row for row in other.mT], 1)):
        assert made.dtype is dtype
        assert made.equal(2 * other)


def test_without_entries_or_with_other_shapes_the_dtype_does_not_matter(session: Session) -> None:
    for layout in ("coo", "csr"):
        empty: torch.Tensor = getattr(torch.zeros(4, 4, device="cuda", dtype=HALF), f"to_sparse_{layout}")()
        assert not (empty @ dense(HALF)).any()
        with pytest.raises(RuntimeError, match=r"dense|shapes cannot be multiplied"):
            sparse(layout, LONG) @ torch.ones(3, 3, device="cuda", dtype=LONG)


@pytest.mark.parametrize("layout", ["bsr", "bsc"])
def test_layouts_without_a_kernel_are_refused_on_cuda(session: Session, layout: str) -> None:
    matrix, other = sparse(layout, torch.float32), dense(torch.float32)
    with pytest.raises(RuntimeError, match=r"^addmm: computation on CUDA is not implemented for Strided"):
        other @ matrix if layout == "bsr" else matrix @ other


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_products_by_element_keep_zeros(session: Session, layout: str) -> None:
    """pytorch/pytorch#114529: entries of the one that has fewer, with zeros where the other has none."""
    few = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    more = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 3.0]])
    ours, theirs = (getattr(part.cuda(), f"to_sparse_{layout}")() for part in (few, more))
    for found in (ours * theirs, theirs * ours):
        assert found.layout is ours.layout
        assert found.values().tolist() == [0.0, 6.0]
        assert torch.equal(found.to_dense().cpu(), few * more)
