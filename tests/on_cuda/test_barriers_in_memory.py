"""`mbarrier` and bulk copies (PTX ISA 9.7.13.16 and 9.7.9.25.4), and shared variables that have constructors."""

from __future__ import annotations

import torch

from windtunnel.session import Session

HEAD = r"""
__device__ unsigned shared_at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void begin(unsigned long long *b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_at(b)), "r"(n) : "memory");
}
__device__ unsigned long long arrive(unsigned long long *b) {
  unsigned long long state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(shared_at(b)) : "memory");
  return state;
}
__device__ bool over(unsigned long long *b, unsigned long long state) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(shared_at(b)), "l"(state) : "memory");
  return done;
}
__device__ bool over_parity(unsigned long long *b, unsigned parity) {
  int done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(shared_at(b)), "r"(parity) : "memory");
  return done;
}
"""
REVERSED = r"""
extern "C" __global__ void reversed(const float *x, float *y, int waits) {
  __shared__ float s[256];
  __shared__ unsigned long long b;
  if (threadIdx.x == 0) begin(&b, blockDim.x);
  __syncthreads();
  for (int turn = 0; turn < 3; turn++) {
    s[threadIdx.x] = x[threadIdx.x] + turn;
    unsigned long long state = arrive(&b);
    if (waits) while (!over(&b, state)) ;
    y[256 * turn + threadIdx.x] = s[255 - threadIdx.x];
    while (!over(&b, state)) ;
    state = arrive(&b);
    while (!over(&b, state)) ;
  }
}
"""
BULK = r"""
extern "C" __global__ void bulk(const float *x, float *y) {
  __shared__ alignas(16) float s[2][1024];
  __shared__ unsigned long long full[2];
  if (threadIdx.x < 2) begin(full + threadIdx.x, 1);
  __syncthreads();
  const float *from = x + 4096 * blockIdx.x;
  for (int stage = 0; stage < 4; stage++) {
    if (threadIdx.x == 0) {
      unsigned long long *b = full + stage % 2;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_at(b)), "r"(4096) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(shared_at(s[stage % 2])), "l"(from + 1024 * stage), "r"(4096), "r"(shared_at(b)) : "memory");
    }
    while (!over_parity(full + stage % 2, stage / 2 & 1)) ;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[stage % 2][i] *= 2;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                   :: "l"(y + 4096 * blockIdx.x + 1024 * stage), "r"(shared_at(s[stage % 2])), "r"(4096) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
  }
}
"""
BUILT = r"""
template <typename T, int N> struct Kept {
  T values[N];
  __device__ Kept() : values{} {}
  __device__ ~Kept() { values[0] = -1; }
};
extern "C" __global__ void kept(const float *x, float *y) {
  __shared__ alignas(16) Kept<float, 64> pair[2];  __shared__ Kept<int, 64> one;
  pair[1].values[threadIdx.x] = x[threadIdx.x];
  one.values[threadIdx.x] = 3;
  __syncthreads();
  y[threadIdx.x] = pair[1].values[63 - threadIdx.x] + one.values[63 - threadIdx.x];
}
"""
PARTS = r"""
extern "C" __global__ void parts(const unsigned *a, const unsigned *b, unsigned *y) {
  int i = threadIdx.x;
  y[i] = __vmins2(a[i], b[i]);
  y[32 + i] = __vaddus4(a[i], b[i]);
  y[64 + i] = __vcmpgts4(a[i], b[i]);
  y[96 + i] = __vabsdiffu4(a[i], b[i]);
}
"""


def test_arrivals_order_shared_memory(session: Session) -> None:
    kernel = torch.cuda._compile_kernel(HEAD + REVERSED, "reversed")
    x, y = torch.rand(256, device="cuda"), torch.zeros(768, device="cuda")
    kernel(grid=(1, 1, 1), block=(256, 1, 1), args=[x, y, 1])
    assert torch.equal(y, torch.cat([x.flip(0) + turn for turn in range(3)]))
    assert not [one for one in session.findings() if one.severity == "error"]
    kernel(grid=(1, 1, 1), block=(256, 1, 1), args=[x, y, 0])
    assert {one.code for one in session.findings() if one.severity == "error"} == {"cuda-shared-race"}


def test_bulk_copies_arrive_with_their_bytes(session: Session) -> None:
    kernel = torch.cuda._compile_kernel(HEAD + BULK, "bulk")
    x, y = torch.rand(3 * 4096, device="cuda"), torch.zeros(3 * 4096, device="cuda")
    kernel(grid=(3, 1, 1), block=(128, 1, 1), args=[x, y])
    assert torch.equal(y, x * 2)
    assert not [one for one in session.findings() if one.severity == "error"]
    kernel(grid=(3, 1, 1), block=(128, 1, 1), args=[x[16:], y])  # 64 bytes too far at the end
    assert {one.code for one in session.findings() if one.severity == "error"} == {"cuda-out-of-bounds"}


def test_shared_variables_are_not_constructed(session: Session) -> None:
    kernel = torch.cuda._compile_kernel(BUILT, "kept")
    x, y = torch.rand(64, device="cuda"), torch.zeros(64, device="cuda")
    kernel(grid=(1, 1, 1), block=(64, 1, 1), args=[x, y])
    assert torch.equal(y, x.flip(0) + 3)
    assert not [one for one in session.findings() if one.severity == "error"]


def test_parts_of_a_word_are_computed_apart(session: Session) -> None:
    kernel = torch.cuda._compile_kernel(PARTS, "parts")
    given = [torch.randint(-(2**31), 2**31, (32,), dtype=torch.int64).to(torch.int32) for _ in range(2)]
    y = torch.zeros(128, dtype=torch.int32, device="cuda")
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[given[0].cuda(), given[1].cuda(), y])
    (a, b), found = given, y.cpu().view(4, 32)
    halves = torch.minimum(a.view(torch.int16), b.view(torch.int16))
    a8, b8 = a.view(torch.uint8).int(), b.view(torch.uint8).int()
    assert torch.equal(found[0].view(torch.int16), halves)
    assert torch.equal(found[1].view(torch.uint8).int(), (a8 + b8).clamp(max=255))
    assert torch.equal(found[2].view(torch.int8), -(a.view(torch.int8) > b.view(torch.int8)).to(torch.int8))
    assert torch.equal(found[3].view(torch.uint8).int(), (a8 - b8).abs())
