"""Decompositions and solvers: a chain of columns that wait for one another, and the arithmetic of what they update.

    time = floor + matrix_us * matrices + column_us * columns ** order * matrices that go one by one
           + operations / (share * peak)

A factorization goes column by column (or panel by panel), and each waits for the one before, so that small and
medium matrices cost the chain and not the arithmetic; LAPACK's blocked forms are the model (Anderson et al., LAPACK
Users' Guide), and what PyTorch calls decides what of a batch runs at once: batched Cholesky and LU do; QR, eigenvalues
and singular values of matrices beyond 32 x 32 go one by one
(aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp). Jacobi's method (`svd`) turns pairs of columns, so its
chain grows faster than they do. QR of matrices up to 32 x 32 runs in one kernel, with a chain of its own.

The constants are fitted on the times that pull requests and issues publish with their GPU (`make calibrate`,
`data/solvers.toml`; each row says how many support it). They are the same for all generations: where two cards did the
same (`eig` on RTX 5090 and GH200, `eigh` on RTX 2080 Ti and GH200) the newer and faster one is not the quicker.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read

CLASSES = ("linalg",)
_KINDS = (
    ("triangular", "triangular"), ("cholesky_solve", "triangular"), ("cholesky_inverse", "triangular"),
    ("lu_solve", "triangular"), ("cholesky", "cholesky"), ("eigvalsh", "eigh"), ("eigh", "eigh"), ("eig", "eig"),
    ("svd", "svd"), ("qr", "qr"), ("householder_product", "qr"), ("lstsq", "qr"), ("lu", "lu"), ("det", "lu"),
    ("inv", "lu"), ("solve", "lu"),
)  # fmt: skip
"""What stands in an operator's name, and whose chain it is."""
_TOGETHER = ("cholesky", "lu", "triangular")
MOST_IN_A_BLOCK = 32
"""Rows and columns up to which cuSOLVER takes a batch of singular values at once (gesvdjBatched), and QR one kernel."""


class Chain(NamedTuple):
    """The constants of one kind of factorization, for one matrix or for a batch that runs at once."""

    floor_us: float
    matrix_us: float
    column_us: float
    order: float
    share: float


@cache
def chain(kind: str, form: str) -> Chain:
    """The row of `data/solvers.toml`; a form ("batched" or "small") takes its own where it has one."""
    rows = {row["name"]: row for row in read("solvers")["chain"]}
    row = rows.get(f"{kind} {form}", rows[kind])
    return Chain(*(row[name] for name in Chain._fields))


def kind_of(name: str) -> str | None:
    """Whose chain an operator's is; None of what is none, as `linalg_cross`."""
    return next((kind for part, kind in _KINDS if part in name), None)


def price(problem: Problem) -> Price | None:
    """The time of a decomposition or a solver, or None of an operator that is neither."""
    kind = kind_of(problem.name)
    matrix = problem.inputs[0] if problem.inputs else ()
    if kind is None or len(matrix) < 2 or not prod(matrix):
        return None
    batch, rows, columns = prod(matrix[:-2]), matrix[-2], matrix[-1]
    together, form = form_of(kind, batch, rows, columns)
    of = chain(kind, form)
    chain_us = (1 if together else batch) * of.column_us * min(rows, columns) ** of.order
    work = flops.count(problem.signature, problem.name, "linalg")
    time_us = of.floor_us + batch * of.matrix_us + chain_us + 1e6 * work / (of.share * problem.peak_flops)
    return Price(1000.0 * time_us, 1000.0 * of.floor_us, band("linear algebra", "borrowed"))


def form_of(kind: str, batch: int, rows: int, columns: int) -> tuple[bool, str]:
    """Whether a batch runs at once, and the form of the chain that it takes."""
    small = max(rows, columns) <= MOST_IN_A_BLOCK
    together = batch > 1 and (kind in _TOGETHER or (small and kind == "svd"))
    return together, "batched" if together else "small" if small else ""
