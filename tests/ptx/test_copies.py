"""Asynchronous copies to shared memory: what is read before its copy has been waited for."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import launch, np

HEAD = r"""
__device__ void copy(float *to, const float *from) {
  unsigned a = (unsigned)(unsigned long)(__attribute__((address_space(3))) void *)to;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(a), "l"(from) : "memory");
}
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#define WAIT_ALL() asm volatile("cp.async.wait_all;" ::: "memory")
"""
ONE = """KERNEL k(const float *x, float *y) {
  __shared__ float s[64]; int t = threadIdx_x;
  copy(s + t, x + t);
  FIRST
  SECOND
  y[t] = s[63 - t];
}"""
STAGES = """KERNEL k(const float *x, float *y) {
  __shared__ float s[3][64]; int t = threadIdx_x; float sum = 0;
  for (int i = 0; i < 2; i++) { copy(&s[i][t], x + 64 * i + t); COMMIT(); }
  for (int i = 0; i < 8; i++) {
    WAIT(LEFT);
    __syncthreads();
    if (i + 2 < 8) copy(&s[(i + 2) % 3][t], x + 64 * (i + 2) + t);
    COMMIT();
    sum += s[i % 3][63 - t];
  }
  y[t] = sum;
}"""


def found(source: str) -> list[tuple[str, str]]:
    source = HEAD + source
    x, y = np.arange(512, dtype=np.float32), np.zeros(64, np.float32)
    done = launch(source, [x, y], block=(64,))
    return [(f.kind, source.split("\n")[f.line - 1].strip()) for f in done.faults]


@pytest.mark.parametrize("wait", ["COMMIT(); WAIT(0);", "WAIT_ALL();"])
def test_a_copy_is_read_after_a_wait_and_a_barrier(wait: str) -> None:
    assert found(ONE.replace("FIRST", wait).replace("SECOND", "__syncthreads();")) == []


@pytest.mark.parametrize("wait", ["", "COMMIT();", "COMMIT(); WAIT(1);", "WAIT(0);"])
def test_a_copy_that_nothing_waits_for_is_found(wait: str) -> None:
    source = ONE.replace("FIRST", wait).replace("SECOND", "__syncthreads();")
    assert found(source) == [("copy-under-way", "y[t] = s[63 - t];")]


def test_a_barrier_before_the_wait_orders_nothing() -> None:
    source = ONE.replace("FIRST", "COMMIT(); __syncthreads();").replace("SECOND", "WAIT(0);")
    line = "y[t] = s[63 - t];"  # one warp has not waited yet, the other one has
    assert found(source) == [("copy-under-way", line), ("shared-race", line)]
    own = source.replace("63 - t", "t")
    assert found(own) == []


def test_a_pipeline_waits_for_its_oldest_stage() -> None:
    assert found(STAGES.replace("LEFT", "1")) == []
    assert ("copy-under-way", "sum += s[i % 3][63 - t];") in found(STAGES.replace("LEFT", "2"))


def test_a_pipeline_that_copies_where_others_still_read_is_found() -> None:
    source = STAGES.replace("LEFT", "1").replace("% 3", "% 2").replace("s[3]", "s[2]")
    assert ("copy-under-way", "sum += s[i % 2][63 - t];") in found(source)
