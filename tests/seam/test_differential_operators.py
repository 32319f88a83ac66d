"""PyTorch on emulated GPUs beside plain PyTorch: what the differential run found, and a part of it with a seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tools import ROOT
from tools.differential.programs import compare

import windtunnel
from windtunnel.session import Session

PARTS = 4
"""Of how many parts every operator of the database is in one, with one of its calls."""
FEW = 60
"""One of so many parts runs each time."""


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_writes_its_out(session: Session, function: Callable[..., Any], place: str) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], device=place)
    out = torch.empty(2, 2, device=place)
    function(x, 1, out=out)
    half = 0.5 if function is torch.softmax else torch.log(torch.tensor(0.5)).item()
    assert out.tolist() == [[pytest.approx(half)] * 2] * 2


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("around", [torch.enable_grad, torch.inference_mode])
def test_a_complex_pseudoinverse_is_one(session: Session, place: str, around: Callable[[], Any]) -> None:
    a = torch.tensor([[1 + 1j, 2 - 1j], [0.5j, 1]], device=place)
    with around():
        product = torch.linalg.pinv(a) @ a
    assert torch.allclose(product.cpu(), torch.eye(2, dtype=torch.complex64), atol=1e-5)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_complex_least_squares_solve_and_differentiate(session: Session, place: str) -> None:
    a = torch.tensor([[1 + 1j, 0], [0, 2j], [1, 1]], dtype=torch.complex128, device=place).requires_grad_()
    b = torch.tensor([[1], [1j], [2]], dtype=torch.complex128, device=place)
    solution, residuals, *_ = torch.linalg.lstsq(a, b, driver="gels")
    left = (b - a @ solution).abs().square().sum()
    assert residuals.tolist() == [pytest.approx(left.item())]
    assert torch.autograd.gradcheck(lambda m: torch.linalg.lstsq(m, b).solution, (a,))


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_matrix_rank_writes_its_out(session: Session, place: str) -> None:
    matrix, out = torch.eye(5, device=place), torch.full((), 77, device=place)
    assert torch.linalg.matrix_rank(matrix, out=out) is out
    assert out.item() == 5
    with pytest.raises(RuntimeError, match="safely castable from Long dtype, but got result with dtype Bool"):
        torch.linalg.matrix_rank(matrix, out=torch.empty((), dtype=torch.bool, device=place))


@pytest.mark.parametrize("name", ["rcond", "atol", "rtol"])
def test_a_tolerance_of_pinv_lies_where_its_matrix_does(name: str) -> None:
    with windtunnel.emulate():
        matrix = torch.eye(3, device="cuda")
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
            torch.linalg.pinv(matrix, **{name: torch.full((), 1e-2)})
        assert torch.linalg.pinv(matrix, **{name: torch.full((), 1e-2, device="cuda")}).equal(matrix)
        assert torch.linalg.pinv(matrix[:0], **{name: torch.full((), 1e-2)}).shape == (3, 0)


@pytest.mark.parametrize("function", [torch.linalg.matrix_rank, torch.linalg.cond, torch.linalg.matrix_norm])
def test_what_an_empty_matrix_gives_is_on_its_device(session: Session, function: Callable[..., Any]) -> None:
    assert function(torch.empty(2, 0, 0, device="cuda:1")).device == torch.device("cuda", 1)


def test_no_classes_at_all_are_on_their_device(session: Session) -> None:
    empty = torch.empty(0, dtype=torch.int64, device="cuda:1")
    assert torch.nn.functional.one_hot(empty, 3).device == empty.device


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_computed_in_float32_is_written_to_its_out(session: Session, dtype: torch.dtype, size: int) -> None:
    x, out = torch.tensor([0.5, 1.5], dtype=torch.bfloat16, device="cuda"), torch.ones(size, dtype=dtype, device="cuda")
    assert torch.polygamma(1, x, out=out) is out
    assert out.tolist() == [4.9375, 0.93359375]


@pytest.mark.parametrize("function", [torch.trapz, torch.trapezoid])
def test_an_integral_without_points_is_on_its_device(session: Session, function: Callable[..., Any]) -> None:
    assert function(torch.empty(0, device="cuda:1")).device == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "eigvals"])
def test_values_alone_are_computed_as_without_a_mode(name: str) -> None:
    matrix = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    want = getattr(torch.linalg, name)(matrix)
    with windtunnel.emulate("1xV100"):
        got = getattr(torch.linalg, name)(matrix.cuda())
    assert torch.equal(got, want)


def test_a_late_copy_that_does_not_fit_is_refused_at_its_call(session: Session) -> None:
    target = torch.zeros(2, 4, pin_memory=True)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(4\) must match the size of tensor b \(2\)"):
        target.copy_(torch.ones(2, 2, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    assert target.sum() == 0


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_out_is_written(session: Session, place: str) -> None:
    pattern, out = (torch.eye(3, device=place).to_sparse_csr() for _ in range(2))
    ones = torch.ones(3, 3, device=place)
    torch.sparse.sampled_addmm(pattern, ones, ones, out=out)
    assert out.values().tolist() == [4, 4, 4]
    assert str(out.values().device) == place


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_dropout_that_drops_nothing_is_its_input(session: Session, place: str) -> None:
    x = torch.ones(4, device=place)
    assert torch.nn.functional.dropout(x, training=False) is x


def test_dropout_on_the_host_draws_what_it_draws_without_gpus() -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(0)
        return torch.nn.functional.dropout(torch.ones(64), 0.5)

    want = drawn()
    with windtunnel.emulate("1xV100"):
        assert torch.equal(drawn(), want)


def test_random_programs_end_as_on_plain_pytorch() -> None:
    assert compare(range(12)) == []


@pytest.mark.parametrize(
    ("part", "parts"),
    [
        (7, FEW),
        *(pytest.param(part, PARTS, marks=pytest.mark.weekly if part else pytest.mark.long) for part in range(PARTS)),
    ],
)
def test_operators_do_what_they_do_on_plain_pytorch(part: int, parts: int) -> None:
    """In a process of its own: PyTorch's database, once imported, freezes flags of `torch.backends` for good."""
    types = ("--dtypes", "float32,complex64,int64", "--samples", "1")
    tool = (sys.executable, "-W", "ignore", "-m", "tools.differential", "operators")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*tool, "--one-case", "--part", f"{part}/{parts}", *types]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    operators, comparisons = re.search(r"(\d+) operators, (\d+) comparisons", done.stdout).groups()  # type: ignore[union-attr]
    assert int(comparisons) > int(operators) * 1.9
