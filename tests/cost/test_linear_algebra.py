"""Decompositions: chains of columns, and what of a batch runs at once."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.trace.operation import Signature

KEYS = ("H100-SXM5-80GB", "V100-SXM2-16GB", "RTX5090", "RTX3090", "H20-96GB")
H100, V100, RTX5090, RTX3090, H20 = (CostModel(gpus.find(key), (12, 8)) for key in KEYS)


def us(cost_model, name, *shape, dtype="float32"):
    return cost_model.kernel(Signature(name, (shape,), (dtype,), 1)).duration_ns / 1000


@pytest.mark.parametrize(
    ("cost_model", "name", "shape", "published"),
    [
        (H100, "aten::linalg_cholesky_ex", (128, 128), 108.6),
        (H100, "aten::linalg_cholesky_ex", (2048, 2048), 1954.3),
        (H100, "aten::linalg_cholesky_ex", (64, 512, 512), 1261.4),
        (V100, "aten::_linalg_svd", (100, 10, 10), 298.7),
        (V100, "aten::_linalg_svd", (300, 900, 100), 1608937.1),
        (RTX5090, "aten::linalg_eig", (512, 3, 3), 467080.0),
        (RTX3090, "aten::linalg_qr", (1024, 3, 3), 25984.11),
        (RTX3090, "aten::_linalg_svd", (8192, 3, 3), 3877.86),
        (H20, "aten::_linalg_solve_ex", (24, 24), 102.0),
        (H20, "aten::linalg_lu_solve", (256, 256), 138.0),
    ],
)
def test_published_decompositions_are_met(cost_model, name, shape, published):
    """tools/corpus/solvers_published.csv."""
    assert us(cost_model, name, *shape) == pytest.approx(published, rel=0.35)


def test_a_batch_of_cholesky_runs_at_once_and_one_of_qr_does_not():
    assert us(H100, "aten::linalg_cholesky_ex", 16, 64, 64) < 3 * us(H100, "aten::linalg_cholesky_ex", 64, 64)
    assert 6 < us(H100, "aten::linalg_qr", 16, 64, 64) / us(H100, "aten::linalg_qr", 64, 64) <= 16


@pytest.mark.parametrize(
    "name", ["linalg_cholesky_ex", "linalg_lu_factor_ex", "linalg_qr", "_linalg_eigh", "_linalg_svd"]
)
def test_time_grows_with_the_matrix(name):
    times = [us(H100, f"aten::{name}", size, size) for size in (2, 16, 33, 128, 1024, 4096)]
    assert times == sorted(times)


def test_a_cross_product_is_no_decomposition():
    assert us(H100, "aten::linalg_cross", 1000, 3) < 100
