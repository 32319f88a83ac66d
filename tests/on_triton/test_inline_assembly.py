"""PTX in Triton kernels and in compiled programs: values, and what is refused."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from windtunnel import emulate
from windtunnel.errors import UnsupportedError


@pytest.fixture
def session():
    with emulate("B200") as session:
        yield session


@triton.jit
def packed(a_ptr, b_ptr, c_ptr, d_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    # The example of Triton's documentation, two elements at a time.
    c, d = tl.inline_asm_elementwise(
        asm="""
        {
            .reg .b8 tmp<4>;
            mov.b32 {tmp0, tmp1, tmp2, tmp3}, $4;
            cvt.u32.u8 $0, tmp0;
            cvt.u32.u8 $1, tmp1;
        }
        cvt.rn.f32.s32 $2, $0;
        cvt.rn.f32.s32 $3, $1;
        max.f32 $2, $2, $5;
        max.f32 $3, $3, $6;
        """,
        constraints="=r,=r,=r,=r,r,r,r",
        args=[tl.load(a_ptr + at), tl.load(b_ptr + at)],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=2,
    )
    tl.store(c_ptr + at, c)
    tl.store(d_ptr + at, d)


@triton.jit
def doubled(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.inline_asm_elementwise("add.rn.bf16 $0, $1, $1;", "=h,h", [x], dtype=tl.bfloat16, is_pure=True, pack=1)
    tl.store(y_ptr + at, y)


@triton.jit
def synchronized(x_ptr):
    tl.inline_asm_elementwise("bar.sync 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(x_ptr, 1)


def test_elements_that_share_registers(session):
    a = torch.arange(256, device="cuda").to(torch.uint8)
    b = torch.linspace(-300, 300, 256, device="cuda")
    c, d = torch.empty(256, dtype=torch.int32, device="cuda"), torch.empty(256, device="cuda")
    packed[(1,)](a, b, c, d, 256)
    assert torch.equal(c.cpu(), a.cpu().int())
    assert torch.equal(d.cpu(), torch.maximum(a.cpu().float(), b.cpu()))


def test_bfloat16(session):
    x = torch.randn(64, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    doubled[(1,)](x, y, 64)
    assert torch.equal(y.cpu(), x.cpu() * 2)


def test_a_barrier_is_refused_with_its_line(session):
    with pytest.raises(UnsupportedError, match=r"'bar\.sync' asks for memory, threads or the time") as refusal:
        synchronized[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
    assert "synchronized" in refusal.value.__notes__[0]


def test_a_compiled_program(session):
    from torch._higher_order_ops.inline_asm_elementwise import inline_asm_elementwise

    @torch.compile
    def scale(x: torch.Tensor) -> torch.Tensor:
        size = x.abs().amax(1) / 448
        return inline_asm_elementwise(
            size, asm_str="cvt.rp.satfinite.ue8m0x2.f32 $0, 0.0, $1;", constraints="=h,r", dtype=torch.uint16
        ).to(torch.uint8)

    x = torch.randn(64, 32, device="cuda")
    wanted = 127 + torch.ceil(torch.log2(x.cpu().double().abs().amax(1) / 448))
    assert torch.equal(scale(x).cpu().double(), wanted)
