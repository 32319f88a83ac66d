"""Barriers in shared memory and bulk copies: phases, counts and bytes as in PTX ISA 9.7.13.16 and 9.7.9.25.4."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import launch, np

HEAD = r"""
__device__ unsigned at(void *p) { return (unsigned)(unsigned long)(__attribute__((address_space(3))) void *)p; }
#define STATE(NAME, TEXT)                                                                                              \
  __device__ unsigned long NAME(void *b, int n) {                                                                      \
    unsigned long state;                                                                                               \
    asm volatile(TEXT : "=l"(state) : "r"(at(b)), "r"(n) : "memory");                                                  \
    return state;                                                                                                      \
  }
STATE(arrive, "mbarrier.arrive.shared.b64 %0, [%1], %2;")
STATE(drop, "mbarrier.arrive_drop.shared.b64 %0, [%1], %2;")
STATE(expecting, "mbarrier.arrive.expect_tx.shared.b64 %0, [%1], %2;")
#define DO(NAME, TEXT) __device__ void NAME(void *b, int n) { asm volatile(TEXT :: "r"(at(b)), "r"(n) : "memory"); }
DO(begin, "mbarrier.init.shared.b64 [%0], %1;")
DO(end, "mbarrier.inval.shared.b64 [%0];")
DO(expect, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;")
DO(complete, "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;")
DO(copied, "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];")
__device__ int over(void *b, unsigned long state) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(at(b)), "l"(state) : "memory");
  return done;
}
__device__ int parity(void *b, int phase) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(at(b)), "r"(phase) : "memory");
  return done;
}
__device__ int pending(unsigned long state) {
  int count;
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
  return count;
}
"""
PHASES = r"""
KERNEL k(int *out) {
  __shared__ unsigned long b;
  begin(&b, 3);
  unsigned long first = arrive(&b, 1);
  *out++ = pending(first);     // before it: 3
  *out++ = over(&b, first);    // 2 are left
  *out++ = parity(&b, 1);      // the phase before the first counts as over
  *out++ = parity(&b, 0);
  drop(&b, 1);                 // arrives, and of later phases is none
  copied(&b, 0);               // the third
  *out++ = over(&b, first);
  *out++ = parity(&b, 0);
  *out++ = parity(&b, 1);      // the second phase is under way
  unsigned long second = arrive(&b, 1);
  *out++ = pending(second);    // 2 from now on
  unsigned long third = arrive(&b, 1);
  *out++ = over(&b, second) + over(&b, third);
  second = expecting(&b, 64);  // one arrival and 64 bytes are left
  arrive(&b, 1);
  *out++ = over(&b, second);
  complete(&b, 48);
  *out++ = over(&b, second);
  expect(&b, 16);
  complete(&b, 32);
  *out++ = over(&b, second);
  end(&b, 0);
}
"""
EXPECTED = [3, 0, 1, 0, 1, 1, 0, 2, 2, 0, 0, 1]
COPY = r"""
KERNEL k(const float *x, float *y, int bytes, int from, int to) {
  __shared__ __attribute__((aligned(16))) float s[256];
  __shared__ unsigned long b;
  if (threadIdx_x == 0) begin(&b, 1);
  __syncthreads();
  if (threadIdx_x == 0) {
    expecting(&b, bytes);
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(s + to)), "l"(x + from), "r"(bytes), "r"(at(&b)) : "memory");
  }
  while (!parity(&b, 0)) ;
  if (threadIdx_x < bytes / 4) y[threadIdx_x] = s[to + bytes / 4 - 1 - threadIdx_x];
}
"""
MANY = r"""
KERNEL k(float *y, int count) {
  __shared__ unsigned long b[200];
  __shared__ float s[200];
  int lane = threadIdx_x % 32, warp = threadIdx_x / 32;
  if (threadIdx_x == 0) for (int j = 0; j < count; j++) begin(&b[j], 1);
  __syncthreads();
  for (int j = 0; j < count && lane == 0; j++) {
    if (warp == 0) { s[j] = j; arrive(&b[j], 1); }
    else {
      while (!parity(&b[j == count - 1 ? 0 : j], 0)) ;
      y[j] = s[j];
    }
  }
}
"""


def test_a_barrier_of_many_orders_nothing_for_another_one() -> None:
    y = np.zeros(200, np.float32)
    found = launch(HEAD + MANY, [y, 200], block=(64,), arch="sm_90")  # the last but asks the first
    assert {(fault.kind, fault.address) for fault in found.faults} == {("shared-race", 200 * 8 + 199 * 4)}


def test_many_barriers_order_what_was_before_them() -> None:
    y = np.zeros(200, np.float32)
    right = MANY.replace("j == count - 1 ? 0 : j", "j")
    found = launch(HEAD + right, [y, 200], block=(64,), arch="sm_90")
    assert (y == np.arange(200)).all()
    assert found.faults == ()


@pytest.mark.parametrize("checks", ["all", "none"])
def test_phases_end_with_their_arrivals_and_bytes(checks: str) -> None:
    out = np.zeros(len(EXPECTED), np.int32)
    found = launch(HEAD + PHASES, [out], block=(1,), checks=checks, arch="sm_90")
    assert (out.tolist(), found.faults, found.trap) == (EXPECTED, (), None)


@pytest.mark.parametrize(
    ("bytes_", "from_", "to", "kinds"),
    [
        (1024, 0, 0, set()),
        (1008, 4, 0, set()),
        (16, 252, 252, set()),
        (1024, 4, 0, {"out-of-bounds"}),
        (64, 2, 0, {"misaligned"}),
        (24, 0, 0, {"misaligned"}),
    ],
)
def test_bulk_copies_are_copies_of_pieces_within_their_memories(
    bytes_: int, from_: int, to: int, kinds: set[str]
) -> None:
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    found = launch(HEAD + COPY, [x, y, bytes_, from_, to], block=(256,), arch="sm_90")
    assert {fault.kind for fault in found.faults} == kinds
    if not kinds:
        count = bytes_ // 4
        assert (y[:count] == x[from_ : from_ + count][::-1]).all()
        assert found.counters is not None
