"""Checks that read the notes recorded by the seam."""

from __future__ import annotations

import pytest

from windtunnel import checks


def one(program):
    (finding,) = checks.run(program.trace)
    return finding


def test_remarks_on_one_line_are_one_finding(program):
    for _ in range(5):
        program.note("created-on-cpu", 4, size_bytes=4096)
    finding = one(program)
    assert (finding.code, finding.severity, finding.site.line, finding.times) == ("created-on-cpu", "warning", 4, 5)


def test_created_once_is_info(program):
    program.note("created-on-cpu", 4)
    assert one(program).severity == "info"


def test_a_numbered_device_is_info_and_named(program):
    program.note("hard-coded-device", 4, name="cuda:1")
    finding = one(program)
    assert finding.severity == "info"
    assert "cuda:1" in finding.message


def test_asking_for_availability_only_is_not_also_a_hard_coded_device(program):
    program.note("hard-coded-device", 4, name="cuda:1").note("availability-without-count", 4, name="cuda:1")
    assert one(program).code == "availability-without-count"


def test_visible_devices_set_too_late(program):
    program.note("late-visible-devices", 4, value="1,2")
    finding = one(program)
    assert (finding.severity, finding.site.line) == ("warning", 4)
    assert "'1,2'" in finding.message


def test_an_optimizer_that_loops_over_tensors(program):
    for _ in range(20):
        program.note("unfused-optimizer", 9, optimizer="Adam", parameters=60, kernels=480)
    finding = one(program)
    assert finding.severity == "warning"
    assert finding.message == "Adam updated 60 tensors one by one with 480 kernels in each of 20 steps"


def test_an_optimizer_over_all_tensors_is_only_a_candidate(program):
    for _ in range(20):
        program.note("unfused-optimizer", 9, optimizer="Adam", parameters=60, kernels=7, foreach=1)
    ((run, findings),) = checks.examine([program.trace])
    assert findings == []
    assert [one.fix for one in run.candidates(program.trace)] == ["fused optimizer"]


def test_a_few_tensors_are_info(program):
    program.note("unfused-optimizer", 9, optimizer="SGD", parameters=4)
    assert one(program).severity == "info"


def test_data_parallel_with_good_batches_is_info(program):
    program.note("data-parallel", 3, devices=2, batch=128).note("data-parallel", 3, devices=2, batch=20)
    finding = one(program)
    assert finding.severity == "info"
    assert "a batch of 128 gives each about 64 examples" in finding.message


def test_data_parallel_with_fewer_chunks_than_devices(program):
    program.note("data-parallel", 3, devices=8, batch=20)
    finding = one(program)
    assert finding.severity == "warning"
    assert "gives 7 chunks: 1 device did nothing" in finding.message


def test_distributed_mistakes_on_one_line_stay_apart(program):
    program.note("same-data-on-ranks", 3).note("context-on-other-gpu", 3, rank=1)
    findings = checks.run(program.trace)
    assert len(findings) == 2
    assert any("rank 1" in finding.message for finding in findings)


def test_a_context_on_another_rank_s_gpu(program):
    program.note("context-on-other-gpu", 3, rank=2, device=0, other=0)
    finding = one(program)
    assert finding.message.startswith("the process of rank 2 has opened a context on cuda:0, where rank 0 works")
    assert "set_device(local_rank)" in finding.advice


def test_another_current_device_is_a_remark(program):
    program.note("current-device-elsewhere", 3, rank=1, device=1)
    assert one(program).severity == "info"


@pytest.mark.parametrize(("allowed", "severity"), [(0, "error"), (1, "info")])
def test_two_ranks_on_one_gpu_are_an_error_unless_the_run_lets_them(program, allowed, severity):
    program.note("shared-gpu", 3, rank=1, device=0, other=0, allowed=allowed)
    finding = one(program)
    assert finding.severity == severity
    assert finding.message.startswith("ranks 0 and 1 both work on cuda:0: NCCL refuses")


def test_casts_from_before_a_weight_changed_are_one_error_a_region(program):
    program.note("stale-autocast", 3, shape="[64, 32]", used="train.py:8")
    program.note("stale-autocast", 3, shape="[1, 64]", used="train.py:8")
    finding = one(program)
    assert (finding.severity, finding.site.line, finding.times) == ("error", 3, 2)
    assert "the first one, [64, 32], at train.py:8" in finding.message
    assert "enter `torch.autocast` anew for each forward pass" in finding.advice
