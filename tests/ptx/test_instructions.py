"""Every instruction of the table against an oracle on exact numbers."""

from __future__ import annotations

import functools
import random

import pytest

from tests.ptx.harness import BITS, decode, run, width
from tests.ptx.oracles import CASES, Case
from windtunnel.ptx.table import ROWS

pytest.importorskip("llvmlite")
FLOATS = {
    "f16": [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7FFF, 0x3555, 0x4248],
    "bf16": [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FFF, 0x3EAB, 0x4049],
    "f32": [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
    0x7F800000,
            0xFF800000, 0x7FFFFFFF, 0x3EAAAAAB, 0x40490FDB, 0x4F000000, 0xCF000000, 0x3F000000, 0x3FC00000,
            0x477FE000, 0x477FF000],
    "f64": [0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000,
    0x7FEFFFFFFFFFFFFF,
            0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x3FD5555555555555, 0x41E0000000000000,
            0x3FE0000000000000,
            0x36A0000000000000, 0x3690000000000001, 0x47EFFFFFF0000000, 0x3FF0000010000000],
}  # fmt: skip


def operands(kind: str, count: int, random_: random.Random) -> list[int]:
    if kind == "pred":
        return [random_.randrange(2) for _ in range(count)]
    if kind.endswith("x2"):
        low, high = operands(kind[:-2], count, random_), operands(kind[:-2], count, random_)
        return [a | b << 16 for a, b in zip(low, high, strict=True)]
    bits = width(kind)
    if kind in FLOATS:
        special = FLOATS[kind]
        return [_real(kind, special, random_) for _ in range(count)]
    edges = [0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 2, 31, 32, 33, 64]
    return [
        random_.choice([random_.choice(edges), random_.getrandbits(bits), random_.randrange(70)]) for _ in range(count)
    ]


def _real(kind: str, special: list[int], random_: random.Random) -> int:
    choice = random_.random()
    if choice < 0.35:
        return random_.choice(special)
    if choice < 0.6:
        return random_.getrandbits(BITS[kind])
    middle = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}[kind]
    step = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[kind]
    return (middle + random_.randrange(-6 << step, 6 << step)) | random_.getrandbits(1) << (BITS[kind] - 1)


def nan(bits: int, kind: str) -> bool:
    return kind in BITS and decode(bits, kind) != decode(bits, kind)


THREADS = 192
TOGETHER = 24


@functools.cache
def results(inputs: tuple[str, ...], part: int) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Operands, and what the cases of these types gave: many instructions in one kernel."""
    random_ = random.Random(f"{inputs} {part}")
    given = [operands(kind, THREADS, random_) for kind in inputs]
    cases = _alike(inputs)[part * TOGETHER : (part + 1) * TOGETHER]
    return given, run([(case.text, case.outputs) for case in cases], inputs, given)


@functools.cache
def _alike(inputs: tuple[str, ...]) -> list[Case]:
    return [case for case in CASES if case.inputs == inputs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text.split(";")[0].split()[0])
def test_instruction(case: Case) -> None:
    index = _alike(case.inputs).index(case)
    given, batch = results(case.inputs, index // TOGETHER)
    found = batch[index % TOGETHER]
    for position, values in enumerate(zip(*given, strict=True)):
        expected = case.oracle(*values)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        for j, (want, kind) in enumerate(zip(wanted, case.outputs, strict=True)):
            want &= (1 << width(kind)) - 1
            got = found[j][position]
            assert got == want or _both_nan(got, want, kind), (case.text, [hex(v) for v in values], hex(want), hex(got))


def _both_nan(got: int, want: int, kind: str) -> bool:
    """Which NaN a conversion or a sign change gives follows from its operand."""
    if kind in ("f16x2", "bf16x2"):
        halves = [(got & 0xFFFF, want & 0xFFFF), (got >> 16, want >> 16)]
        return all(a == b or (nan(a, kind[:-2]) and nan(b, kind[:-2])) for a, b in halves)
    return nan(got, kind) and nan(want, kind)


ELSEWHERE = {
    "test_threads": "$collect shfl vote match redux activemask elect bar barrier bra ret exit trap brkpt call atom red "
    "membar "
    "fence nanosleep pmevent griddepcontrol prefetch prefetchu applypriority discard isspacep",
    "test_memory": "ld ldu st cp ldmatrix mma",
    "test_arrivals": "mbarrier.init mbarrier.inval mbarrier.expect_tx mbarrier.complete_tx mbarrier.arrive "
    "mbarrier.arrive_drop mbarrier.test_wait mbarrier.try_wait mbarrier.pending_count cp.async.mbarrier cp.async.bulk",
    "test_hardware": "ex2 lg2 sin cos tanh rsqrt",
}


def test_every_row_has_a_test() -> None:
    tested = {case.name for case in CASES} | {
        part.split(".")[0] for case in CASES for part in case.text.replace(";", "; ").split()
    }
    elsewhere = {name for names in ELSEWHERE.values() for name in names.split()}
    assert set(ROWS) - tested - elsewhere == set()
