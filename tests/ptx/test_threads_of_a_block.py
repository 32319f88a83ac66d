"""Threads of a block that use the same global memory, and data that a kernel both writes and takes for constant."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import compiled, launch, np
from windtunnel.ptx.dependence import UNKNOWN
from windtunnel.ptx.syntax import parse
from windtunnel.ptx.variants import prepare


def found(body: str, threads: int = 64, blocks: int = 1, arrays: list[object] | None = None) -> list[tuple[str, int]]:
    x = np.arange(256, dtype=np.float32)
    source = "KERNEL k(float *x, float *y, unsigned char *z) {\n  int t = threadIdx_x;\n" + body + "\n}"
    values = arrays or [x, np.zeros(256, np.float32), np.zeros(256, np.uint8)]
    done = launch(source, values, grid=(blocks,), block=(threads,))
    return sorted({(f.kind, f.line - 2) for f in done.faults})


def test_a_value_of_another_thread_needs_a_barrier() -> None:
    assert found("y[t] = x[t];\ny[64 + t] = y[63 - t];") == [("global-race", 1), ("global-race", 2)]
    assert found("y[t] = x[t];\n__syncthreads(); y[64 + t] = y[63 - t];") == []
    assert found("y[t] = x[t];\ny[64 + t] = y[t] + 1;") == []


def test_lanes_of_a_warp_need_a_barrier_of_theirs() -> None:
    assert ("global-warp-race", 2) in found("y[t] = x[t];\ny[64 + t] = y[31 - t];", threads=32)
    assert found("y[t] = x[t];\n__syncwarp(); y[64 + t] = y[31 - t];", threads=32) == []


def test_a_sum_into_one_place_without_atomics_is_found_in_one_block() -> None:
    assert ("global-race", 1) in found("y[0] += x[t];")
    assert ("global-warp-race", 1) in found("for (int i = 0; i < x[3]; i++) y[0] += x[t];", threads=32)


def test_a_kernel_may_work_in_place() -> None:
    assert found("x[t] = 2 * x[t] + 1;\nx[t + 64] -= x[t];", blocks=1) == []
    assert found("for (int i = 0; i < 4; i++) { y[t] += x[t + i]; }") == []


def test_what_a_volatile_read_waits_for_is_no_race() -> None:
    body = "y[64 + t] = *(volatile float *)(y + 63 - t);\nif (x[t] < 0) y[t] = 1;"
    assert found(body) == []


@pytest.mark.parametrize(("index", "kinds"), [("t", ["block-conflict"]), ("64 * blockIdx_x + t", [])])
def test_blocks_that_write_the_same_bytes_are_found(index: str, kinds: list[str]) -> None:
    assert found(f"z[{index}] = (unsigned char)x[t];", blocks=2) == [(kind, 1) for kind in kinds]
    assert found(f"z[{index} + 1] = (unsigned char)x[t];", blocks=2) == [(kind, 1) for kind in kinds]


def test_data_that_the_kernel_writes_is_not_read_as_constant() -> None:
    source = """KERNEL k(const float *x, float *y) {
      int t = threadIdx_x;
      y[t] = 2 * t;
      __syncthreads();
      y[64 + t] = __nvvm_ldg_f(x + (t ^ 1));
    }"""
    x, y = np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    assert launch(source, [x, y], block=(64,)).faults == ()
    (fault,) = launch(source, [y, y], block=(64,)).faults
    assert (fault.kind, fault.line) == ("read-only-cache", 5)


def test_what_is_of_several_lines_is_of_the_one_before() -> None:
    lines = [".loc 1 7 3", "mov.u32 %r1, 1;", ".loc 1 0 3", "mov.u32 %r1, 2;", ".loc 1 9 3", "ret;"]
    text = ".visible .entry k() {\n.reg .b32 %r<2>;\n" + "\n".join(lines) + "\n}\n"
    statements = parse('.file 1 "k.cu"\n' + text).functions["k"].statements
    assert [s.location.line for s in statements if s.location] == [7, 7, 9]


def test_where_a_kernel_loads_and_stores_is_seen_in_its_code() -> None:
    code = compiled("""__device__ float z[64];
KERNEL k(const float *x, float *y, const long *at, float **w) {
  int t = threadIdx_x;
  y[at[t]] = x[t] + z[t];
  w[t][0] = 1;
}""")
    source = parse(code)
    found = prepare(source, source.functions["k"]).accessed
    assert found.loaded == {frozenset({0}), frozenset({16}), frozenset({"z"}), frozenset({24})}
    assert found.stored == {frozenset({8}), frozenset({UNKNOWN})}
    assert not found.atomic
