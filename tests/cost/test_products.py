"""The family of matrix products against published kernel timings, and what its time must do in general."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.files import read
from windtunnel.trace.operation import Signature

TABLE = Path(__file__).parents[2] / "tools" / "corpus" / "products_bf16.csv"
WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "float64": 8}


def model(name):
    return CostModel(gpus.find(name), (12, 4))


A100, H100, B200, L40S = map(model, ("A100-SXM4-80GB", "H100", "B200", "L40S"))


def product(m, n, k, dtype="bfloat16", batch=None, **detail):
    lead = () if batch is None else (batch,)
    name = "aten::mm" if batch is None else "aten::bmm"
    shapes = ((*lead, m, k), (*lead, k, n), (*lead, m, n))
    return Signature(name, shapes, (dtype,) * 3, 2, detail=tuple(detail.items()))


def us(cost_model, *sizes, **options):
    return cost_model.kernel(product(*sizes, **options)).duration_ns / 1000


@pytest.mark.parametrize("key", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-180GB", "L40S"])
def test_published_timings(key):
    """Every fifteenth row of the table: the median error, and how many times lie inside the printed band."""
    cost_model = model(key)
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == key][::15]
    errors, inside = [], 0
    for row in rows:
        cost = cost_model.kernel(product(*(int(row[side]) for side in "mnk")))
        ratio = 1000 * float(row["us"]) / cost.duration_ns
        errors.append(abs(1 / ratio - 1))
        inside += abs(ratio - 1) <= cost.band
    assert median(errors) <= 0.10
    assert 0.75 <= inside / len(rows) <= 0.95


def test_an_odd_number_of_rows_needs_no_alignment():
    """Measured on an H100: 287 us; the tensor cores load along k and n, which are aligned."""
    assert us(H100, 2561, 3072, 16384) == pytest.approx(287, rel=0.2)
    assert us(A100, 4095, 4096, 4096) == pytest.approx(us(A100, 4096, 4096, 4096), rel=0.02)


@pytest.mark.parametrize("sizes", [(4096, 4095, 4096), (4096, 4096, 4095)])
def test_contiguous_dimensions_need_alignment(sizes):
    assert us(A100, *sizes) > 1.3 * us(A100, 4096, 4096, 4096)


def test_alignment_is_that_of_the_layout_in_memory():
    odd_rows, odd_inner = (4095, 4096, 4096), (4096, 4096, 4095)
    assert us(A100, *odd_rows, transposed_a=1) > 1.3 * us(A100, *odd_rows)
    assert us(A100, *odd_inner, transposed_a=1) > us(A100, 4096, 4096, 4096) * 0.99
    both = us(A100, *odd_inner, transposed_a=1)  # neither operand's rows nor the result's have 4095 elements
    assert both == pytest.approx(us(A100, 4096, 4096, 4096), rel=0.02)


def test_linear_is_the_product_with_its_weight_transposed():
    linear = Signature("aten::linear", ((2, 512, 1024), (4096, 1024), (2, 512, 4096)), ("bfloat16",) * 3, 2)
    assert H100.kernel(linear) == H100.kernel(product(1024, 4096, 1024, transposed_b=1))


def test_a_batch_multiplies_the_tiles():
    one, many = us(A100, 1024, 1024, 1024), us(A100, 1024, 1024, 1024, batch=64)
    assert 20 * one < many < 64 * one
    assert us(A100, 256, 256, 64, batch=8) < 1.5 * us(A100, 256, 256, 64, batch=1)  # one SM each


def test_long_and_thin_products_split_k():
    """On an A100 64 x 64 x 65536 would take a single tile, on one of 108 multiprocessors, more than 300 us."""
    assert us(A100, 64, 64, 65536) < 60


def test_decoding_is_bound_by_memory():
    cost = H100.kernel(product(1, 16384, 16384))
    assert cost.bound == "memory"
    assert 0.65 < 2 * 16384**2 / cost.duration_ns / 3350 < 0.95


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "float64"])
def test_every_type_is_priced(dtype):
    peak = {"float32": "fp32", "float8_e4m3fn": "fp8", "int8": "int8", "float64": "fp64_tensor"}.get(dtype, "fp16")
    reached = 2 * 8192**3 / us(H100, 8192, 8192, 8192, dtype=dtype) * 1e6 / H100.gpu.peak_flops[peak]
    assert 0.4 < reached < 1.0


def test_the_band_grows_with_the_distance_from_the_timings():
    own, generation, borrowed = (
        cost_model.kernel(product(4096, 4096, 4096, "float16")).band
        for cost_model in (A100, model("A100-SXM4-40GB"), model("RTX3090"))
    )
    assert 0.05 < own < generation < borrowed < 0.5


def test_constants_say_how_many_rows_they_were_fitted_on_and_what_is_left():
    rows = read("products")["row"]
    sixteen = {row["generation"] for row in rows if row["precision"] == "bf16"}
    assert sixteen == {"ampere", "hopper", "blackwell", "ada"}
    assert {"pascal", "volta", "turing"} < {row["generation"] for row in rows if row["precision"] == "fp32"}
    for row in rows:
        assert row["n"] > 1000
        assert row["median_error"] < (0.09 if row["precision"] == "bf16" else 0.16)
        assert row["source"].startswith("fitted: ")


EIGHTS = st.integers(1, 1 << 11).map(lambda side: 8 * side)


@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 1 << 13), n=EIGHTS, k=EIGHTS, side=st.sampled_from("mnk"), more=st.integers(1, 64))
def test_a_longer_side_never_takes_less(m, n, k, side, more):
    longer = {"m": m, "n": n, "k": k}
    longer[side] += more if side == "m" else 8 * more
    for cost_model in (A100, H100, B200, L40S):
        before = cost_model.kernel(product(m, n, k)).duration_ns
        assert before <= cost_model.kernel(product(**longer)).duration_ns


def test_many_tiny_products_have_a_finite_time():
    """Windows of a Swin transformer: so many that no tile below 128 x 64 was tried, and no larger one either."""
    windows = Signature("aten::bmm", ((98304, 49, 32), (98304, 32, 49), (98304, 49, 49)), ("float16",) * 3, 2)
    assert 1e5 < A100.kernel(windows).duration_ns < 1e8
