"""Advice speaks the framework of the program: no PyTorch in what a JAX program is told."""

from __future__ import annotations

import pytest
from traces import DTOH, HTOD, Program

from windtunnel import checks
from windtunnel.checks import _words

OTHERS = ("jax", "tensorflow", "mxnet")
PYTORCH = ("torch", "PYTORCH", "non_blocking", ".cuda()", ".to('cpu'", "detach", "GradScaler", ".pin_memory()")
GIB = 1 << 30


def programs() -> list[Program]:
    """Programs that, together, have every finding that needs no more than kernels, copies, waits and totals."""
    slow = Program()
    for _ in range(40):
        slow.copy(HTOD, 1 << 22, line=3).kernel(ns=50_000, line=4).copy(DTOH, 1 << 20, line=5).item(line=6)
    numbers = Program()
    for _ in range(60):
        numbers.copy(HTOD, 4, line=3).kernel(ns=4_000, line=4).wait("block_until_ready", line=6)
    small = Program()
    for _ in range(2_200):
        small.kernel(ns=1_000, line=2)
    idle = Program()
    for _ in range(20):
        idle.host(2_000_000, line=2).kernel(ns=900_000, line=3)
    matrix = Program()
    matrix.trace.facts["gpus"][0] |= {"compute_capability": [8, 0], "peak_flops": {"fp16": 312e12, "fp32": 19.5e12}}
    for _ in range(150):
        matrix.kernel("aten::mm", ns=100_000, line=2, dtypes=("float32",), flops=1)
    full = Program()
    totals = {"peak_allocated_bytes": 12 * GIB, "peak_reserved_bytes": 16 * GIB, "context_bytes": 3 * GIB}
    full.trace.facts["devices"] = [{"memory_bytes": 16 * GIB, **totals}] * 2
    full.kernel(line=2).note("out-of-memory", 3, device=0, requested_bytes=GIB, reserved_bytes=2 * GIB)
    full.note("out-of-memory", 4, device=0, requested_bytes=GIB)
    timed = Program()
    timed.clock(2)
    for _ in range(30):
        timed.kernel(ns=1_000_000, line=3)
    timed.clock(4)
    grown = Program()
    for number in range(12):
        grown.now_ns += 1_000_000
        grown.memory("alloc", 20_000 + number, 64 << 10, line=5).kernel(line=6).step(number)
    kept = Program()
    kept.trace.sources["train.py"] = {5: "results.append(y.cpu())"}
    for _ in range(40):
        kept.kernel(ns=50_000, line=4).copy(DTOH, 1 << 20, line=5)
    return [slow, numbers, small, idle, matrix, full, timed, grown, kept]


@pytest.fixture(scope="module", params=OTHERS)
def findings(request):
    found = []
    for program in programs():
        program.trace.facts["frameworks"] = [request.param]
        found += checks.run(program.trace)
    return found


def test_no_other_framework_hears_pytorch_s_words(findings):
    said = [f"{finding.message}. {finding.advice}" for finding in findings]
    assert not [text for text in said for word in PYTORCH if word in text]


def test_the_findings_are_those_that_every_framework_can_have(findings):
    assert {finding.code for finding in findings} >= {
        "host-sync", "pageable-copy", "launch-bound", "idle-gpu", "low-tensor-core-use", "near-full-memory",
        "out-of-memory", "fragmentation", "wrong-timing", "growing-memory",
    }  # fmt: skip


def test_pytorch_s_own_words_stay():
    (slow, *_) = programs()
    said = " ".join(finding.advice for finding in checks.run(slow.trace))
    assert "`DataLoader(..., pin_memory=True)`" in said
    assert "`.to('cpu', non_blocking=True)`" in said


def test_every_phrase_of_the_table_is_one_that_the_checks_say():
    said = [f"{finding.message} {finding.advice}" for program in programs() for finding in checks.run(program.trace)]
    unused = [torch for torch, _ in _words._phrases("jax") if not any(torch in text for text in said)]
    assert unused == []


def test_a_program_of_two_frameworks_hears_pytorch_s():
    assert _words.framework_of({"frameworks": ["jax", "torch"]}) == "torch"
    assert _words.framework_of({"frameworks": ["jax"]}) == "jax"
    assert _words.framework_of({}) == "torch"
