"""Kernels in CUDA C++ beside the times that others published of them."""

from __future__ import annotations

from tools.corpus import custom_kernels


def shares(left_out: bool) -> tuple[float, float, float]:
    """Of the rows, those within 30 %, within 2.5 times, and inside the band."""
    found = [
        custom_kernels.outcome(one) for one in custom_kernels.calls() if custom_kernels.is_fitted(one.kind) != left_out
    ]
    factors = [max(one.ratio, 1 / one.ratio) for one in found]
    near, far = (sum(one <= most for one in factors) / len(found) for most in (1.3, 2.5))
    return near, far, sum(one.inside for one in found) / len(found)


def test_half_are_within_30_percent_and_nine_tenths_within_twice_and_a_half() -> None:
    for left_out in (False, True):
        near, far, inside = shares(left_out)
        assert near >= 0.5
        assert far >= 0.9
        assert inside >= 0.75


def test_lines_of_a_benchmark_are_read() -> None:
    text = """
                                        S=1024, K=2048
           out_f32: ['1.0', '2.0'], time:0.00694895ms
        out_f32_th: ['1.0', '2.0'], time:0.00825715ms
  out_tf32(mma2x4+...+stage3+dsmem): ['70.5', '26.1'], time:1.820373ms, swizzle: NOOP, TFLOPS: 37.75
              out_f32(cublas): ['70.6', '26.1'], time:2.229022ms, swizzle: NOOP, TFLOPS: 30.83
"""
    assert list(custom_kernels.lines(text)) == [
        ("S=1024,K=2048", "f32", 0.00694895),
        ("S=1024,K=2048", "tf32(mma2x4+...+stage3+dsmem)", 1.820373),
    ]
