"""What a module that XLA compiled for a GPU runs, from its text."""

from __future__ import annotations

from windtunnel.seam.jax.hlo import program_of_module

MODULE = """\
HloModule jit_step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%fused_reduce (p: f32[64,32]) -> f32[64] {
  %p = f32[64,32]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %exp.1 = f32[64,32]{1,0} exponential(%p)
  ROOT %reduce.1 = f32[64]{0} reduce(%exp.1, %zero), dimensions={1}, to_apply=%sum
}

%fused_slice (p.1: f32[1000,32], at: s32[]) -> f32[1,32] {
  %p.1 = f32[1000,32]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %cut = f32[1,32]{1,0} dynamic-slice(%p.1, %at, %at), dynamic_slice_sizes={1,32}
}

%body (state: (f32[64,32])) -> (f32[64,32]) {
  %state = (f32[64,32]{1,0}) parameter(0)
  %x.1 = f32[64,32]{1,0} get-tuple-element(%state), index=0
  %copy.1 = f32[64,32]{1,0} copy(%x.1)
  ROOT %next = (f32[64,32]{1,0}) tuple(%copy.1)
}

ENTRY %main (x: bf16[64,128], w: bf16[128,32], table: f32[1000,32], at: s32[]) -> f32[64] {
  %x = bf16[64,128]{1,0} parameter(0)
  %w = bf16[128,32]{1,0} parameter(1)
  %table = f32[1000,32]{1,0} parameter(2)
  %at.1 = s32[] parameter(3)
  %call = (f32[64,32]{1,0}, s8[4096]{0}) custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %y = f32[64,32]{1,0} get-tuple-element(%call), index=0
  %all-reduce-start.1 = f32[64,32]{1,0} all-reduce-start(%y), to_apply=%sum
  %all-reduce-done.1 = f32[64,32]{1,0} all-reduce-done(%all-reduce-start.1)
  %state.1 = (f32[64,32]{1,0}) tuple(%all-reduce-done.1)
  %loop = (f32[64,32]{1,0}) while(%state.1), condition=%sum, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %z = f32[64,32]{1,0} get-tuple-element(%loop), index=0
  %row = f32[1,32]{1,0} fusion(%table, %at.1), kind=kLoop, calls=%fused_slice
  ROOT %out = f32[64]{0} fusion(%z), kind=kInput, calls=%fused_reduce
}
"""  # noqa: E501  # XLA's lines


def test_each_instruction_that_launches_is_one_kernel():
    program = program_of_module(MODULE)
    assert [(work.signature.name, work.times) for work in program.work] == [
        ("dot_general", 1), ("copy", 5), ("loop_fusion", 1), ("input_reduce_fusion", 1),
    ]  # fmt: skip
    assert (program.local, program.unknown_loops) == (True, 0)


def test_products_are_priced_as_products():
    product = program_of_module(MODULE).work[0].signature
    assert product.shapes == ((64, 128), (128, 32), (64, 32))
    assert product.dtypes == ("bfloat16", "bfloat16", "float32")
    assert product.flops == 2 * 64 * 128 * 32
    assert product.written_bytes == 4 * 64 * 32  # not the workspace


def test_a_slice_reads_what_it_cuts_out():
    cut = program_of_module(MODULE).work[2].signature
    assert (cut.read_bytes, cut.written_bytes) == (4 * 32 + 4, 4 * 32)


def test_fused_work_is_counted():
    reduced = program_of_module(MODULE).work[3].signature
    assert (reduced.read_bytes, reduced.written_bytes) == (4 * 64 * 32, 4 * 64)
    assert reduced.flops == 8 * 64 * 32 + 64 * 32


def test_loops_of_unknown_length_are_said():
    unknown = program_of_module(MODULE.replace("known_trip_count", "something_else"))
    assert (unknown.unknown_loops, unknown.work[1].times) == (1, 1)
