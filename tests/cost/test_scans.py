"""Scans, sorts, random numbers, gathers and embeddings: published times, and what their time must do in general."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from statistics import median

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.trace.operation import Signature

TABLE = Path(__file__).parents[2] / "tools" / "corpus" / "memory_bound_published.csv"
MODELS = ("H100-SXM5-80GB", "A100-SXM4-80GB", "H20-96GB")
H100, A100, H20 = (CostModel(gpus.find(name), (12, 8)) for name in MODELS)


def us(cost_model, name, inputs, outputs, dtypes):
    signature = Signature(name, (*inputs, *outputs), dtypes, len(inputs))
    return cost_model.kernel(signature).duration_ns / 1000


def scan(cost_model, name, *shape, dtype="float32"):
    return us(cost_model, f"aten::{name}", (shape,), (shape,), (dtype, dtype))


@pytest.mark.parametrize("kind", ["scan", "random", "index", "embedding"])
def test_published_times_are_met_within_a_factor_of_one_and_a_half(kind):
    """Of all rows of a class: the median factor."""
    factors = []
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["class"] == kind]
    assert len(rows) >= 8
    for row in rows:
        inputs, outputs = (
            [tuple(map(int, shape.split("x"))) for shape in row[side].split()] for side in ("inputs", "outputs")
        )
        cost_model, dtypes = CostModel(gpus.find(row["gpu"]), (12, 8)), tuple(row["dtypes"].split())
        predicted = sum(us(cost_model, name, inputs, outputs, dtypes) for name in row["operator"].split())
        factors.append(math.exp(abs(math.log(predicted / float(row["us"])))))
    assert median(factors) < 1.5


def test_a_scan_goes_along_its_rows_however_few_bytes_they_are():
    halves = scan(H20, "cumsum", 1024, 4096, dtype="float16")
    assert scan(H20, "cumsum", 1024, 4096) == pytest.approx(halves, rel=0.05)
    # 64 threads a row instead of 32: as many turns, of two blocks on each multiprocessor and not of one
    assert 1.2 * halves < scan(H20, "cumsum", 1024, 8192) < 1.6 * halves
    assert scan(H20, "cumsum", 1024, 16384) > 1.7 * scan(H20, "cumsum", 1024, 8192)


def test_one_long_row_is_scanned_by_the_whole_device():
    assert scan(H100, "cumsum", 50_000_000) < scan(H100, "cumsum", 8, 6_250_000) / 10


@pytest.mark.parametrize("name", ["cumsum", "sort", "nonzero", "uniform_"])
def test_time_grows_with_the_work(name):
    rows = [scan(A100, name, 512, size) for size in (16, 64, 1000, 4096, 4097, 70_000)]
    columns = [scan(A100, name, rows, 1000) for rows in (2, 64, 1000, 40_000)]
    assert rows == sorted(rows)
    assert columns == sorted(columns)


def test_a_long_sort_takes_as_long_in_16_bits():
    """An H200's of 16,777,216 numbers: 823 us in 32 bits, 938 in 16, which CUB sorts by another way."""

    def sort(dtype):
        return us(A100, "aten::sort", ((1, 1 << 26),), ((1, 1 << 26),) * 2, (dtype, dtype, "int64"))

    assert sort("float32") > 5 * scan(A100, "nonzero", 1, 1 << 26)
    assert sort("float32") == pytest.approx(sort("float16"), rel=0.2)
    assert 1.8 < sort("float64") / sort("float32") < 2.6


def test_random_numbers_cost_the_same_in_every_type():
    def draw(name, dtype="float32"):
        return us(H100, f"aten::{name}", ((1 << 28,),), (), (dtype,))

    assert draw("uniform_", "float16") == pytest.approx(draw("uniform_"), rel=0.1)
    assert draw("bernoulli_") > 1.5 * draw("normal_") > 1.5 * draw("uniform_")


def test_a_gather_from_a_long_row_takes_a_sector_for_each_element():
    def gather(*shape):
        return us(H100, "aten::gather", (shape, shape), (shape,), ("float32", "int64", "float32"))

    assert gather(1 << 28) > 1.8 * gather(1 << 14, 1 << 14)
    assert gather(1 << 20) == pytest.approx(gather(1 << 10, 1 << 10), rel=0.05)  # L2 holds it


@pytest.mark.parametrize(("columns", "published_ms"), [(2, 83.6), (4, 137.4), (8, 244.8), (16, 332.4), (32, 337.9)])
def test_a_scan_down_columns_waits_for_each_sector(columns, published_ms):
    """pytorch/pytorch#122170, on a GPU that it does not name: a row of few columns finds its sector in L1."""
    shape = (1 << 20, columns)
    t4 = CostModel(gpus.find("T4"), (12, 1))
    signature = Signature("aten::cumsum", (shape, shape), ("float32",) * 2, 1, detail=(("dim", 0),))
    assert t4.kernel(signature).duration_ns / 1e6 == pytest.approx(published_ms, rel=0.4)


@pytest.mark.parametrize(
    ("shape", "published_us"),
    [((1024, 1024), 130), ((4096, 4096), 625), ((1024, 65536), 2018), ((10000, 65536), 12768)],
)
def test_a_scan_that_keeps_places_has_as_many_threads_a_row_as_others(shape, published_us):
    """FlagOpen/FlagGems#683 on an A100."""
    a100 = CostModel(A100.gpu, (13, 0))
    signature = Signature("aten::cummax", (shape, shape, shape), ("float16", "float16", "int64"), 1)
    assert a100.kernel(signature).duration_ns / 1000 == pytest.approx(published_us, rel=0.4)
