"""Instructions whose operands all threads share, as kernels get them in their arguments: the same as lane by lane."""

from __future__ import annotations

import ctypes
import struct

import pytest

from windtunnel import ptx

pytest.importorskip("llvmlite")
FLOATS = (
    "add.rm.f32", "add.rp.f32", "mul.rz.f32", "div.approx.f32", "div.full.f32", "sin.approx.f32", "ex2.approx.f32",
    "rcp.rz.f32", "sqrt.rm.f32",
)  # fmt: skip
WHOLE = ("min.u64", "max.u64", "min.s64")


def kernel(instruction: str, shared: bool) -> str:
    bits = "b64" if instruction.endswith("64") else "b32"
    size, register = (8, "%q") if bits == "b64" else (4, "%r")
    two = instruction.split(".")[0] in ("add", "mul", "div", "min", "max")
    operands = f"{register}1, {register}2" if two else f"{register}1"
    lines = [".version 8.8", ".target sm_90", ".address_size 64",
             f".visible .entry k(.param .u64 out, .param .{bits} a, .param .{bits} b)", "{",
             ".reg .b32 %r<9>; .reg .b64 %q<9>; .reg .b32 %t; .reg .b64 %o; .reg .b64 %w;",
             f"ld.param.{bits} {register}1, [a]; ld.param.{bits} {register}2, [b];",
             "mov.u32 %t, %tid.x;"]  # fmt: skip
    if not shared:  # the same values, which the executor cannot know to be shared
        zero = f"and.b32 %r8, %t, 0; cvt.u64.u32 %w, %r8; or.{bits} {register}1, {register}1, "
        lines.append(zero + ("%w;" if bits == "b64" else "%r8;"))
    lines += [f"{instruction} {register}3, {operands};", f"ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, {size}, %o;",
              f"st.global.{bits} [%o], {register}3; ret;", "}"]  # fmt: skip
    return "\n".join(lines)


def results(instruction: str, shared: bool) -> bytes:
    wide = instruction.endswith("64")
    out = ctypes.create_string_buffer(32 * (8 if wide else 4))
    given = struct.pack("<QQ", 9, 5) if wide else struct.pack("<ff", 1.7, 0.3)
    memory = ptx.Allocations([ptx.Allocation(ctypes.addressof(out), len(out))])
    found = ptx.load(kernel(instruction, shared)).kernels["k"]
    arguments = struct.pack("<Q", ctypes.addressof(out)) + given
    launch = found.launch((1, 1, 1), (32, 1, 1), 0, arguments, memory=memory, output=print)
    assert not launch.faults
    return out.raw


@pytest.mark.parametrize("instruction", [*FLOATS, *WHOLE])
def test_shared_operands(instruction):
    assert results(instruction, shared=True) == results(instruction, shared=False)
