"""Inline assembly over elements: how they fill registers, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from windtunnel.errors import UnsupportedError

pytest.importorskip("llvmlite")
from windtunnel.ptx import inline

F32, I32, U8, U16 = (np.dtype(name) for name in ("float32", "int32", "uint8", "uint16"))


def test_one_element_at_a_time() -> None:
    x = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    (found,) = inline.elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", list(x), [F32], 1)
    wanted = (x[0].astype(np.float64) * x[1] + x[2]).astype(np.float32)  # both steps are exact enough in double
    assert np.array_equal(found, wanted)


def test_four_bytes_share_a_register() -> None:
    # The example of Triton's documentation of `inline_asm_elementwise`.
    text = """
    {
        .reg .b8 tmp<4>;
        mov.b32 {tmp0, tmp1, tmp2, tmp3}, $8;
        cvt.u32.u8 $0, tmp0;
        cvt.u32.u8 $1, tmp1;
        cvt.u32.u8 $2, tmp2;
        cvt.u32.u8 $3, tmp3;
    }
    cvt.rn.f32.s32 $4, $0;
    cvt.rn.f32.s32 $5, $1;
    cvt.rn.f32.s32 $6, $2;
    cvt.rn.f32.s32 $7, $3;
    max.f32 $4, $4, $9;
    max.f32 $5, $5, $10;
    max.f32 $6, $6, $11;
    max.f32 $7, $7, $12;
    """
    a = np.arange(998, dtype=np.int64).astype(np.uint8)
    b = np.linspace(-300, 300, 998, dtype=np.float32)
    outputs = "=r,=r,=r,=r,=r,=r,=r,=r"
    found = inline.elementwise(text, f"{outputs},r,r,r,r,r", [a, b], [I32, F32], 4)
    assert np.array_equal(found[0], a.astype(np.int32))
    assert np.array_equal(found[1], np.maximum(a.astype(np.float32), b))


def test_pairs_of_halves() -> None:
    x = np.arange(64, dtype=np.float16)
    (found,) = inline.elementwise("add.f16x2 $0, $1, $1;", "=r,r", [x], [np.dtype(np.float16)], 2)
    assert np.array_equal(found, x + x)


def test_a_result_of_sixteen_bits_and_a_tied_operand() -> None:
    x = np.array([1, 2, 3, 5], np.float32)
    (found,) = inline.elementwise("cvt.rp.satfinite.ue8m0x2.f32 $0, 0.0, $1;", "=h,r", [x], [U16], 1)
    assert found.tolist() == [127, 128, 129, 130]
    (found,) = inline.elementwise("add.s32 $0, $0, 7;", "=r,0", [np.arange(5, dtype=np.int32)], [I32], 1)
    assert found.tolist() == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("text", "constraints", "words"),
    [
        ("ld.global.b32 $0, [$1];", "=r,l", "'ld.global.b32'"),
        ("bar.sync 0;", "=r", "'bar.sync'"),
        ("mov.u32 $0, %tid.x;", "=r", "'%tid.x'"),
        ("add.u32 $0, $1, $1;", "=r,r,r", "constraints '=r,r,r'"),
        ("frobnicate.u32 $0, $1;", "=r,l", "frobnicate"),
    ],
)
def test_refusals(text: str, constraints: str, words: str) -> None:
    given = [np.zeros(4, np.int64)] if "," in constraints else []
    with pytest.raises(UnsupportedError, match=re.escape(words)):
        inline.elementwise(text, constraints, given, [I32], 1)
