"""What the matrix products say of half precision, and how their table fits a terminal."""

from __future__ import annotations

from windtunnel.experiments import _text, matmul
from windtunnel.experiments._result import Result


def rows(half_s: float) -> list[matmul.ProductTime]:
    return [
        matmul.ProductTime(dtype, n, seconds, 1e-6, 1e-5, 0.5)
        for dtype, seconds in (("float32", 1e-3), ("float16", half_s), ("float64", 2e-3))
        for n in (256, 512)
    ]


def test_a_speedup_of_hundreds_of_thousands_has_its_reason() -> None:
    facts, (sentence,) = matmul._half_precision(rows(0.270702))
    assert "270,702 times as fast at n = 512" in sentence
    assert "the CPU has no instructions for such products" in sentence
    assert "271 times as long as in single precision" in sentence
    assert set(facts) == {"largest_half", "speedup_half", "slower_half"}


def test_a_cpu_with_instructions_needs_none() -> None:
    assert matmul._half_precision(rows(1e-3)) == ({}, ())


def test_numbers_stay_in_one_line_of_eighty_columns() -> None:
    origins = {"cpu": "measured", "gpu": "modelled, ±25 % per kernel"}
    result = Result(
        "matmul", {"cpu": "a CPU", "gpu": "a GPU"}, (matmul._table(rows(0.270702)),), (), {}, (), sources=origins
    )
    shown = _text.render(result, "title", width=80).splitlines()
    assert max(map(len, shown)) <= 80
    assert any("270,702 times" in line and line.startswith("float16") for line in shown)
