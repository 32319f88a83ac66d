"""Profiles of torch.profiler become traces: the same kernels, streams and times, and checks that can be decided."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner
from profiles import Profile

from windtunnel import checks, emulate
from windtunnel.cli import report
from windtunnel.errors import FileFormatError
from windtunnel.measure import kineto, kineto_names
from windtunnel.reports import chrome_trace, text
from windtunnel.trace.operation import Kind, Lane

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
TO_HOST = "Memcpy DtoH (Device -> Pageable)"
GEMM = "volta_sgemm_128x64_tn"
SQUARE = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}


@pytest.fixture
def profile() -> Profile:
    return Profile()


def trace_of(profile: Profile, **head):
    return kineto.from_document(profile.document(**head))


def codes(trace, severity: str = "warning") -> list[str]:
    return [finding.code for finding in checks.run(trace) if finding.severity == severity]


def test_a_kernel_has_its_operator_its_stream_and_its_times(profile):
    profile.launch("aten::mm", GEMM, us=7.5, **SQUARE).launch("aten::relu", "relu_kernel", stream=20)
    product, other = trace_of(profile)
    assert (product.kind, product.signature.name, product.signature.shapes) == (
        Kind.KERNEL, "aten::mm", ((1024, 1024), (1024, 1024)),
    )  # fmt: skip
    assert (product.issued_ns, product.start_ns, product.end_ns) == (5_000, 6_000, 13_500)
    assert (product.lane, other.lane) == (Lane(0, 0), Lane(0, 13))


def test_the_innermost_operator_speaks_for_a_kernel(profile):
    begin = profile.now_us
    profile.launch("aten::addmm", GEMM).within("aten::linear", begin, "cpu_op")
    (record,) = trace_of(profile)
    assert record.signature.name == "aten::addmm"


def test_functions_of_the_program_are_the_lines(profile):
    begin = profile.now_us
    profile.launch("aten::mm", GEMM).within("torch/nn/modules/linear.py(127): forward", begin)
    profile.within("models/net.py(12): forward", begin)
    (record,) = trace_of(profile)
    assert record.site[:3] == ("models/net.py", 12, "forward")


def test_item_is_a_wait_with_its_cause(profile):
    begin = profile.now_us
    profile.launch("aten::sum", "reduce_kernel", us=100).copy("aten::_local_scalar_dense", TO_HOST, 4)
    profile.within("aten::item", begin + 5, "cpu_op")
    waits = [record for record in trace_of(profile) if record.kind == Kind.SYNCHRONIZE]
    assert [wait.signature.name for wait in waits] == ["aten::_local_scalar_dense"]
    assert waits[0].duration_ns > 90_000


def test_only_what_is_waited_for_blocks(profile):
    profile.copy("aten::copy_", PAGEABLE, 1 << 20).copy("aten::copy_", PINNED, 1 << 20, wait=False)
    copies = [record for record in trace_of(profile) if record.kind == Kind.COPY]
    assert [record.signature.detail for record in copies] == [(("non_blocking", 0),), (("non_blocking", 1),)]
    assert [record.value for record in copies] == [1 << 20, 1 << 20]


def test_host_sync_and_pageable_copies_are_decided(profile):
    begin = profile.now_us
    for _ in range(30):
        profile.copy("aten::copy_", PAGEABLE, 1 << 22, us=400).launch("aten::mm", GEMM, us=50)
        profile.copy("aten::_local_scalar_dense", TO_HOST, 4)
    profile.within("train.py(3): <module>", begin)
    assert set(codes(trace_of(profile))) == {"host-sync", "pageable-copy"}


def test_launch_bound_and_idle_are_decided(profile):
    for _ in range(2_100):
        profile.launch("aten::add", "add_kernel", us=1)
    assert codes(trace_of(profile)) == ["launch-bound"]
    paused = Profile()
    for _ in range(20):
        paused.launch("aten::add", "add_kernel", us=1_000)
        paused.now_us += 3_000
    assert codes(trace_of(paused)) == ["idle-gpu"]


@pytest.mark.parametrize(("kernel", "found"), [(GEMM, ["low-tensor-core-use"]), ("volta_fp16_s884gemm_fp16", [])])
def test_the_kernels_name_says_whether_tensor_cores_were_used(profile, kernel, found):
    for _ in range(150):
        profile.launch("aten::mm", kernel, us=100, **SQUARE)
    assert codes(trace_of(profile)) == found


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_kernel", False),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", True),
        ("cutlass_80_simt_sgemm_256x128_8x4_nn_align1", False),
        ("turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp_small_nhwc_tn_v1", True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >", False),
    ],
)
def test_names_of_matrix_kernels(kernel, uses):
    assert kineto_names.is_matrix_unit(kernel) is uses


@pytest.mark.parametrize(
    ("operators", "cause"),
    [
        (("aten::item", "aten::_local_scalar_dense"), "aten::_local_scalar_dense"),
        (("aten::linalg_eigh", "aten::_linalg_eigh"), "aten::_linalg_eigh"),
        (("aten::index", "aten::nonzero"), "aten::nonzero"),
        (("aten::index_put_", "aten::_index_put_impl_"), "aten::_index_put_impl_"),
        (("aten::index_put_", "aten::_index_put_impl_", "aten::to", "aten::copy_"), "cudaMemcpy (blocking)"),
        (("Tensor.tolist", "aten::to", "aten::copy_"), "Tensor.tolist"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), "cudaMemcpy (blocking)"),
        (("aten::add",), "cudaStreamSynchronize"),
    ],
)
def test_the_innermost_operator_that_waits_is_the_cause(operators, cause):
    around = [{"name": name} for name in operators]
    assert kineto_names.waiting_operator("cudaStreamSynchronize", around) == cause


def test_collectives_and_ranks(profile):
    told = {"Collective name": "allreduce", "In msg nelems": 256, "dtype": "Float"}
    begin = profile.now_us
    profile.add("kernel", "ncclDevKernel_AllReduce_Sum_f32", begin, 50, 0, 20, device=0, stream=20, **told)
    trace = trace_of(profile, distributedInfo={"rank": 3, "world_size": 8})
    (record,) = trace
    assert (record.kind, record.signature.name, record.value) == (Kind.COLLECTIVE, "allreduce", 1024)
    assert (trace.facts["rank"], trace.facts["world_size"]) == (3, 8)


def test_steps_are_the_optimizer_s_where_the_profile_names_them(profile):
    for number in range(3):
        begin = profile.now_us
        profile.launch("aten::mm", GEMM)
        step = profile.now_us
        profile.launch("aten::_foreach_add_", "multi_tensor").within("Optimizer.step#SGD.step", step, "user_annotation")
        profile.within(f"ProfilerStep#{number + 7}", begin, "user_annotation")
    steps = [record.value for record in trace_of(profile) if record.kind == Kind.STEP]
    assert steps == [1, 2, 3]


def test_memory_events_give_history_and_peaks(profile):
    profile.memory(4096, 1024, 1024, 2 << 20).memory(4096, -1024, 0, 2 << 20).launch("aten::mm", GEMM)
    trace = trace_of(profile)
    assert [action.action for action in trace.memory_actions()] == ["alloc", "free_completed"]
    assert trace.facts["devices"][0]["peak_allocated_bytes"] == 1024
    assert "near-full-memory" not in trace.facts["not_decidable"]


def test_the_report_says_measured_and_what_cannot_be_known(profile):
    trace = trace_of(profile.launch("aten::mm", GEMM))
    shown = text.render(trace, checks.run(trace), width=500)
    assert "MEASURED on 1 x Tesla V100-SXM2-16GB: too short to judge" in shown
    assert "not decidable from a profile: assumed-value, availability-without-count, " in shown
    assert trace.facts["gpus"][0]["peak_flops"]["fp16"] == 125e12
    assert set(trace.facts["not_decidable"]) <= {check.code for check in checks.all_checks()}


def test_a_gate_that_can_never_close_is_refused(profile, tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(profile.launch("aten::mm", GEMM).document()).encode()))
    assert CliRunner().invoke(report.command, [str(path)], standalone_mode=False).return_value == 0
    refused = CliRunner().invoke(report.command, [str(path), "--fail-on", "stale-read"], standalone_mode=False)
    assert "stale-read is not decidable from" in str(refused.exception)


def test_stray_bytes_in_a_name_do_no_harm(tmp_path):
    path = tmp_path / "profile.json"
    path.write_bytes(
        b'{"traceEvents": [{"ph": "X", "cat": "python_function", "name": "f(0): \xd0", "ts": 1, "dur": 1}]}'
    )
    assert not kineto.load(path).rows


NO_NAME = {"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1}]}


@pytest.mark.parametrize("document", [{"traceEvents": 3}, {"other": []}, [1, 2], NO_NAME])
def test_what_is_no_profile_is_refused(document):
    with pytest.raises(FileFormatError):
        kineto.from_document(document)


def test_an_emulated_run_comes_back_as_it_was(tmp_path):
    torch = pytest.importorskip("torch")
    with emulate("2xV100") as session:
        side = torch.cuda.Stream()
        x = torch.randn(64, 64).pin_memory().to("cuda", non_blocking=True)
        weight = torch.ones(64, 64).cuda().requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            (x @ weight).sum().backward()
            optimizer.step()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (x + 1).to("cuda:1")
        assert y.sum().item() != 0
        torch.cuda.synchronize()
    before = session.trace.canonical()
    after = kineto.from_document(json.loads(chrome_trace.render(before, [])))
    assert rows(after) == rows(before)
    assert after.facts["source"] == "modelled"
    assert after.facts["band"] == before.facts["band"]


def rows(trace):
    kept = (Kind.KERNEL, Kind.COPY, Kind.SYNCHRONIZE, Kind.STEP)
    return [
        (record.kind, record.lane, record.signature.name, *record[4:7], record.site[:2])
        for record in trace
        if record.kind in kept
    ]


def test_the_emulated_profiler_s_own_file_says_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with emulate("V100") as session:
        weight = torch.ones(64, 64, device="cuda").requires_grad_()
        first = len(session.trace)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for _ in range(3):
                (weight @ weight).sum().backward()
            assert weight.grad.sum().item() != 0
        path = tmp_path / "trace.json"
        profiler.export_chrome_trace(str(path))
        before = [record for record in session.trace.since(first) if record.kind == Kind.KERNEL]
    after = [record for record in kineto.load(path) if record.kind == Kind.KERNEL]
    # The profiler writes microseconds since 1970 as floating-point numbers.
    assert [record.duration_ns for record in after] == pytest.approx([record.duration_ns for record in before], abs=2)
    assert {"aten::mm", "aten::sum"} <= {record.signature.name for record in after}
