"""Values that Triton's interpreter gives otherwise than a compiled kernel does.

Expected: the output that triton-lang/triton#10658 prints (a cast out of range), #10291 (where the greatest is, beside
NaN) and the PTX ISA.
"""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
import triton
import triton.language as tl

from windtunnel import emulate

NUMBERS = [inf, 510.0, -200.0, nan]
LONGEST = (1 << 63) - 1


@triton.jit
def cast(x_ptr, out_ptr, TARGET: tl.constexpr):
    at = tl.arange(0, 4)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(TARGET))


@triton.jit
def extremes(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.argmax(tl.load(x_ptr + at, mask=at < n, other=-float("inf")), axis=0))
    tl.store(out_ptr + 1, tl.argmin(tl.load(x_ptr + at, mask=at < n, other=float("inf")), axis=0))


@pytest.mark.parametrize("source", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("target", "dtype", "expected"),
    [
        (tl.int8, torch.int8, [-1, -2, 56, 0]),
        (tl.uint8, torch.uint8, [255, 254, 0, 0]),
        (tl.int16, torch.int16, [32767, 510, -200, 0]),
        (tl.int32, torch.int32, [2147483647, 510, -200, 0]),
        (tl.int64, torch.int64, [LONGEST, 510, -200, -LONGEST - 1]),
    ],
    ids=["int8", "uint8", "int16", "int32", "int64"],
)
def test_a_cast_saturates(source, target, dtype, expected):
    with emulate():
        out = torch.empty(4, dtype=dtype, device="cuda")
        cast[(1,)](torch.tensor(NUMBERS, dtype=source, device="cuda"), out, TARGET=target)
        assert out.tolist() == expected


def test_numbers_that_fit_are_truncated():
    with emulate():
        out = torch.empty(4, dtype=torch.int64, device="cuda")
        cast[(1,)](torch.tensor([-1.9, 2.0**40, 7.5, -0.5], device="cuda"), out, TARGET=tl.int64)
        assert out.tolist() == [-1, 1 << 40, 7, 0]


@pytest.mark.parametrize(
    ("numbers", "expected"), [([nan, 6.0, 8.0], [2, 1]), ([6.0, nan, 8.0], [2, 0]), ([5.0, 9.0, 1.0], [1, 2])]
)
def test_where_the_extremes_are_nan_is_skipped(numbers, expected):
    with emulate():
        out = torch.empty(2, dtype=torch.int32, device="cuda")
        extremes[(1,)](torch.tensor(numbers, device="cuda"), out, 3, BLOCK=4)
        assert out.tolist() == expected
