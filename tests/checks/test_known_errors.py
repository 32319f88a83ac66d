"""Errors that ended a program: those whose fix is known get a line of advice."""

from __future__ import annotations

import pytest

from windtunnel import checks

TEXTS = [
    ("RuntimeError: Expected to mark a variable ready only once. This error is caused by", "use_reentrant=False"),
    ("RuntimeError: Your training graph has changed in this iteration, e.g., one", "leave out `static_graph=True`"),
    ("AcceleratorError: CUDA error: invalid device ordinal\nGPU device may be out of range", "LOCAL_RANK"),
    (
        "RuntimeError: aten._foreach_norm.Scalar got mixed torch.Tensor and DTensor, need to convert all",
        "get_total_norm",
    ),
    (
        "RuntimeError: All operands in aten.stack.default must have the same mesh, but got DeviceMesh((two=2), 'cuda')",
        "get_total_norm",
    ),
    ("RuntimeError: All operands in aten.mm.default must have the same mesh, but got DeviceMesh", "one device mesh"),
    (
        "RuntimeError: Sharding propagation failed for Op(op=aten.stack.default)\n"
        "RuntimeError: DTensor does not support cross-mesh operation on aten.stack.default!",
        "clip_grads_with_norm_",
    ),
    ("RuntimeError: aten.mm.default got mixed torch.Tensor and DTensor, need to convert all", "distribute_tensor"),
]


@pytest.mark.parametrize(("text", "advice"), TEXTS)
def test_the_advice_is_given(program, text, advice):
    program.note("uncaught-error", 4, text=text)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.severity, finding.site.line) == ("known-error", "error", 4)
    assert advice in finding.advice


def test_other_errors_are_no_finding(program):
    program.note("uncaught-error", 4, text="ValueError: the learning rate is negative")
    assert checks.run(program.trace) == []


def test_the_rank_that_ended_by_one_says_so_once(program):
    program.note("uncaught-error", 4, text=TEXTS[0][0])
    program.note(
        "rank-ended", 4, rank=1, group="g", number=1, calls=0, kind="collective", last="", how="exception",
        text=TEXTS[0][0],
    )  # fmt: skip
    (finding,) = checks.run(program.trace)
    assert finding.code == "rank-ended"
    assert TEXTS[0][1] in finding.advice


@pytest.mark.parametrize(
    ("detail", "advice"),
    [
        ({}, "pass `find_unused_parameters=True`"),
        ({"static": 1}, "leave out `static_graph=True` and pass"),
        ({"finds": 1}, "return from `forward` only"),
    ],
)
def test_parameters_without_a_part_in_the_loss(program, detail, advice):
    program.note("unused-parameters", 4, names="b.weight", **detail)
    (finding,) = checks.run(program.trace)
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("by", "advice"), [("", "set_device"), ("load", "`map_location`:"), ("objects", "before objects are gathered")]
)
def test_a_context_on_another_gpu_by_what_opened_it(program, by, advice):
    program.note("context-on-other-gpu", 4, rank=0, device=1, other=1, by=by)
    (finding,) = checks.run(program.trace)
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("maker", "advice"),
    [
        ("init_process_group", "`timeout=` of init_process_group"),
        ("new_group", "does not take over"),
        ("init_device_mesh", "a mesh's groups do not take over"),
    ],
)
def test_a_timeout_by_who_made_the_group(program, maker, advice):
    program.note("collective-timeout", 4, rank=0, number=1, group="g", made_by=maker, waited_ms=9000, limit_ms=5000)
    (finding,) = checks.run(program.trace)
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("messages", "advice"), [(0, "in the same order"), (1, "the send for each receive"), (2, "batch_isend_irecv")]
)
def test_a_deadlock_by_what_meets(program, messages, advice):
    program.note("collective-deadlock", 4, group="g", messages=messages)
    (finding,) = checks.run(program.trace)
    assert advice in finding.advice
