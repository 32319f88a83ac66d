"""Decompositions and solvers: a chain of columns that wait for one another, and the arithmetic of what they update.

    time = floor + matrices that go one by one * (column_us * columns ** order) + operations / (share * peak)

A factorization goes column by column (or panel by panel), and each waits for the one before, so that small and
medium matrices cost the chain and not the arithmetic; LAPACK's blocked forms are the model (Anderson et al., LAPACK
Users' Guide), and what PyTorch calls decides what of a batch runs at once: batched Cholesky and LU do; QR, eigenvalues
and singular values of matrices beyond 32 x 32 go one by one
(aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp). Jacobi's method (`svd`) turns pairs of columns, so its
chain grows faster than they do.

The constants are fitted on the 29 times that PyTorch's pull requests and issues publish with their GPU (`make
calibrate`, `data/solvers.toml`; each row says how many support it). LU and triangular solves have none: theirs are
assumed.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from understudy.cost import flops
from understudy.cost.bands import band
from understudy.cost.families.problem import Price, Problem
from understudy.cost.operators import floor_scale, read

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
"""Rows and columns up to which cuSOLVER takes a batch of singular values at once (gesvdjBatched)."""


class Chain(NamedTuple):
    """The constants of one kind of factorization, for one matrix or for a batch that runs at once."""

    floor_us: float
    column_us: float
    order: float
    share: float
    generation: str


@cache
def chain(kind: str, batched: bool) -> Chain:
    """The row of `data/solvers.toml`; a batch takes its own where it has one."""
    rows = {row["name"]: row for row in read("solvers")["chain"]}
    row = rows.get(f"{kind} batched", rows[kind]) if batched else rows[kind]
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
    small = kind == "svd" and max(rows, columns) <= MOST_IN_A_BLOCK
    together = kind in _TOGETHER or small
    of = chain(kind, together and batch > 1)
    chains = 1 if together else batch
    scale = floor_scale(problem.gpu.generation) / floor_scale(of.generation)
    chain_us = scale * chains * of.column_us * min(rows, columns) ** of.order
    work = flops.count(problem.signature, problem.name, "linalg")
    floor_us = scale * of.floor_us * (1 if together else batch)
    time_us = floor_us + chain_us + 1e6 * work / (of.share * problem.peak_flops)
    return Price(1000.0 * time_us, 1000.0 * scale * of.floor_us, band("linear algebra", "borrowed"))
