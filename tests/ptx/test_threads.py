"""Warps, barriers, atomics, schedules, printf, assert, traps: against NumPy."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import compiled, launch, np
from windtunnel import ptx
from windtunnel.errors import UnsupportedError

SHUFFLES = """KERNEL k(int *x, int *y) {
  int t = threadIdx_x, v = x[t];
  y[t] = __nvvm_shfl_sync_down_i32(-1, v, 3, 31);
  y[64 + t] = __nvvm_shfl_sync_up_i32(-1, v, 5, 0);
  y[128 + t] = __nvvm_shfl_sync_bfly_i32(-1, v, x[0] & 31, 31);
  y[192 + t] = __nvvm_shfl_sync_idx_i32(-1, v, t * 7, 31);
  y[256 + t] = __nvvm_shfl_sync_down_i32(-1, v, 2, ((32 - 8) << 8) | 31);
  y[320 + t] = __nvvm_vote_ballot_sync(-1, v & 1);
  y[384 + t] = __nvvm_vote_any_sync(-1, v == x[5]) + 2 * __nvvm_vote_all_sync(-1, v >= 0);
}"""


def test_shuffles_and_votes() -> None:
    x = np.random.default_rng(0).integers(0, 1000, 64).astype(np.int32)
    y = np.zeros(448, np.int32)
    launch(SHUFFLES, [x, y], block=(64,))
    warps, lane, found = x.reshape(2, 32), np.arange(32), y.reshape(7, 2, 32)
    assert (found[0] == warps[:, np.where(lane + 3 < 32, lane + 3, lane)]).all()
    assert (found[1] == warps[:, np.where(lane >= 5, lane - 5, lane)]).all()
    assert (found[2] == warps[:, lane ^ (x[0] & 31)]).all()
    assert (found[3] == np.stack([w[(np.arange(32) + 32 * i) * 7 % 32] for i, w in enumerate(warps)])).all()
    assert (found[4] == warps[:, np.where(lane % 8 + 2 < 8, lane + 2, lane)]).all()
    ballots = [sum(int(v & 1) << i for i, v in enumerate(w)) for w in warps]
    assert (found[5].astype(np.uint32) == np.array(ballots, np.uint32)[:, None]).all()
    assert (found[6] == [[(x[5] in w) + 2] * 32 for w in warps]).all()


def test_match_redux_and_active_lanes() -> None:
    source = """KERNEL k(int *x, int *y) {
      int t = threadIdx_x;
      if (t < 20) y[t] = __nvvm_match_any_sync_i32(0xfffff, x[t]);
      y[32 + t] = __nvvm_redux_sync_add(x[t], -1);
      y[64 + t] = __nvvm_redux_sync_umax(x[t], -1);
      int a; asm volatile("activemask.b32 %0;" : "=r"(a)); y[96 + t] = a;
    }"""
    x = (np.arange(32) * 7 % 5).astype(np.int32)
    y = np.zeros(128, np.int32)
    done = launch(source, [x, y])
    assert done.faults == ()
    assert list(y[:20]) == [sum(1 << j for j in range(20) if x[j] == x[i]) for i in range(20)]
    assert (y[32:64] == x.sum()).all()
    assert (y[64:96] == x.max()).all()
    assert (y[96:] == -1).all()


ATOMICS = {
    "add": ("__nvvm_atom_add_gen_i(y, x[t])", lambda x: x.sum()),
    "max": ("__nvvm_atom_max_gen_i(y, x[t])", lambda x: x.max()),
    "min": ("__nvvm_atom_min_gen_i(y, x[t])", lambda x: min(0, x.min())),
    "xor": ("__nvvm_atom_xor_gen_i(y, x[t])", lambda x: np.bitwise_xor.reduce(x)),
    "or": ("__nvvm_atom_or_gen_i(y, x[t])", lambda x: np.bitwise_or.reduce(x)),
    "inc": ('asm volatile("red.global.inc.u32 [%0], 10;" :: "l"(y) : "memory")', lambda x: len(x) % 11),
}


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(name: str) -> None:
    text, oracle = ATOMICS[name]
    x = np.random.default_rng(1).integers(-100, 100, 256).astype(np.int32)
    y = np.zeros(1, np.int32)
    launch(f"KERNEL k(int *x, int *y) {{ int t = threadIdx_x + blockIdx_x * 128; {text}; }}", [x, y], (2,), (128,))
    assert y[0] == oracle(x)


def test_compare_and_swap_loop() -> None:
    source = """KERNEL k(float *x, float *y) {
      int *p = (int *)y, old = *p, seen;
      do { seen = old; float v = __builtin_bit_cast(float, seen); v = v > x[threadIdx_x] ? v : x[threadIdx_x];
           old = __nvvm_atom_cas_gen_i(p, seen, __builtin_bit_cast(int, v)); } while (old != seen);
    }"""
    x = np.random.default_rng(2).random(96).astype(np.float32)
    y = np.zeros(1, np.float32)
    launch(source, [x, y], block=(96,), checks="none")
    assert y[0] == x.max()


REDUCTION = """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[100];
  int t = threadIdx_x, i = blockIdx_x * 100 + t;
  s[t] = i < n ? x[i] : 0.f; __syncthreads();
  for (int j = 64; j > 0; j >>= 1) { if (t < j && t + j < 100) s[t] += s[t + j]; __syncthreads(); }
  if (t == 0) __nvvm_atom_add_gen_f(y, s[0]);
}"""


@pytest.mark.parametrize("schedule", [0, 1, 2, 77])
@pytest.mark.parametrize("checks", ["all", "sample", "none"])
def test_schedules_and_variants_agree(schedule: int, checks: ptx.Checks) -> None:
    x = np.random.default_rng(3).integers(0, 9, 2000).astype(np.float32)
    y = np.zeros(1, np.float32)
    done = launch(REDUCTION, [x, y, 1990], (20,), (100,), checks=checks, schedule=schedule)
    assert (y[0], done.faults, done.trap) == (x[:1990].sum(), (), None)


def test_a_schedule_shows_what_depends_on_the_order() -> None:
    source = "KERNEL k(int *x, int *y) { if (threadIdx_x == 0) y[__nvvm_atom_add_gen_i(x, 1)] = blockIdx_x; }"
    orders = set()
    for schedule in range(6):
        x, y = np.zeros(1, np.int32), np.zeros(16, np.int32)
        launch(source, [x, y], (16,), schedule=schedule)
        assert sorted(y) == list(range(16))
        orders.add(tuple(y))
    assert len(orders) > 3


def test_named_barriers() -> None:
    source = """KERNEL k(int *x, int *y) {
      __shared__ int s[128];
      int t = threadIdx_x;
      s[t] = x[t];
      if (t < 64) { asm volatile("bar.sync 1, 64;" ::: "memory"); y[t] = s[63 - t]; }
      else { asm volatile("bar.sync 2, 64;" ::: "memory"); y[t] = s[191 - t]; }
    }"""
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    done = launch(source, [x, y], block=(128,))
    assert done.trap is None
    assert list(y) == [*range(63, -1, -1), *range(127, 63, -1)]


def test_barriers_that_vote() -> None:
    source = """KERNEL k(int *x, int *y) {
      int t = threadIdx_x, c, a, o;
      if (t % 32 < 5) x[t] += 1;
      asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %3, 50; bar.red.popc.u32 %0, 0, p; setp.gt.s32 p, %3, -5;"
                   " barrier.cta.red.and.aligned.pred q, 0, p; selp.u32 %1, 1, 0, q; setp.gt.s32 p, %3, 500;"
                   " bar.red.or.pred q, 0, p; selp.u32 %2, 1, 0, q; }"
                   : "=r"(c), "=r"(a), "=r"(o) : "r"(x[t]) : "memory");
      y[t] = c + 1000 * a + 10000 * o;
    }"""
    x, y = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    done = launch(source, [x, y], block=(100,))
    assert done.faults == ()
    assert (y == (x > 50).sum() + 1000).all()


def test_a_lock_in_a_warp() -> None:
    source = """KERNEL k(int *lock, int *y) {
      bool done = false;
      while (!done) {
        if (__nvvm_atom_cas_gen_i(lock, 0, 1) == 0) { y[0] = y[0] + threadIdx_x; done = true; __nvvm_membar_gl();
          asm volatile("atom.exch.b32 _, [%0], 0;" :: "l"(lock) : "memory"); }
      }
    }"""
    lock, y = np.zeros(1, np.int32), np.zeros(1, np.int32)
    done = launch(source, [lock, y], block=(64,), checks="none")
    assert (done.trap, y[0], lock[0]) == (None, sum(range(64)), 0)


def test_a_wait_that_nobody_ends_is_ended_in_one_sentence() -> None:
    source = """KERNEL k(int *flag, int *y) {
      if (blockIdx_x == 0) { while (*(volatile int *)flag == 0) { } }
      y[blockIdx_x] = 1;
    }"""
    done = launch(source, [np.zeros(1, np.int32), np.zeros(2, np.int32)], (2,), checks="none")
    assert done.trap == "cudaErrorLaunchTimeout"
    assert (done.faults[0].kind, done.faults[0].line) == ("endless-wait", 2)


def test_printf() -> None:
    source = """KERNEL k(int n) {
      struct { int a; double b; const char *c; long long d; unsigned e; } v
          = {(int)threadIdx_x - 1, 1.5 * n, "word", -5000000000ll, 255};
      if (threadIdx_x < 2) vprintf("%d %5.2f|%-6s|%lld %x %%\\n", &v);
    }"""
    printed: list[str] = []
    launch(source, [3], printed=printed)
    assert printed == ["-1  4.50|word  |-5000000000 ff %\n", "0  4.50|word  |-5000000000 ff %\n"]


def test_assert_ends_the_launch() -> None:
    source = """KERNEL k(int *x) {
      if (x[threadIdx_x] > 40) __assertfail("x < 41", "kernel.cu", 2, "k", 1);
      x[threadIdx_x] = 0;
    }"""
    x = np.arange(64, dtype=np.int32)
    done = launch(source, [x], block=(64,))
    assert done.trap == "cudaErrorAssert"
    fault = done.faults[0]
    assert (fault.kind, fault.line, fault.thread) == ("assertion", 2, (41, 0, 0))
    assert fault.message == "Assertion `x < 41` failed at kernel.cu:2"


def test_trap() -> None:
    x = np.zeros(2, np.int32)
    done = launch("KERNEL k(int *x) { if (threadIdx_x == 3) __builtin_trap(); x[0] = 1; }", [x])
    assert done.trap == "cudaErrorLaunchFailure"


def test_functions_are_called_in_place() -> None:
    source = """struct P { int a[5]; float f; };
    __device__ __attribute__((noinline)) int pick(P p, int i) { return p.a[i % 5] + (int)p.f; }
    __device__ __attribute__((noinline)) P make(int i) { P p; for (int j = 0; j < 5; j++) p.a[j] = i * j; p.f = i;
        return p; }
    KERNEL k(int *x, int *y) { int t = threadIdx_x; y[t] = pick(make(x[t]), t) + pick(make(t), 2); }"""
    x, y = np.arange(32, dtype=np.int32) * 3, np.zeros(32, np.int32)
    launch(source, [x, y])
    t = np.arange(32)
    assert (y == x * (t % 5) + x + t * 2 + t).all()


def test_recursion_is_refused() -> None:
    source = """__device__ __attribute__((noinline)) int f(int n, int *x) { x[n] = n; return n > 1 ? f(n / 2, x) +
        f(n - 2, x) : n; }
    KERNEL k(int *x) { x[0] = f(x[1], x); }"""
    with pytest.raises(UnsupportedError, match="calls itself"):
        launch(source, [np.ones(4, np.int32)])


def test_what_is_not_emulated_is_refused_by_name_and_line() -> None:
    source = """KERNEL k(int *x) {
      asm volatile("wgmma.fence.sync.aligned;");
    }"""
    kernel = ptx.load(compiled(source, "sm_90")).kernels["k"]
    with pytest.raises(UnsupportedError, match=r"`wgmma.fence.sync.aligned` \(line 2 of its source\)"):
        kernel.launch((1, 1, 1), (32, 1, 1), 0, b"\0" * 8, memory=ptx.Allocations([]), output=print)


def test_spaces_of_addresses() -> None:
    source = """KERNEL k(int *x, int *y) {
      __shared__ int s[4]; int l[4]; l[x[0]] = 1;
      void *p[3] = {x, s, l};
      int i = threadIdx_x % 3;
      y[threadIdx_x] = __nvvm_isspacep_global(p[i]) + 2 * __nvvm_isspacep_shared(p[i]) +
          4 * __nvvm_isspacep_local(p[i]);
    }"""
    x, y = np.zeros(4, np.int32), np.zeros(32, np.int32)
    launch(source, [x, y], checks="none")
    assert list(y) == [(1, 2, 4)[t % 3] for t in range(32)]


def test_blocks_and_threads_in_three_dimensions() -> None:
    source = """KERNEL k(int *y) {
      int tx = threadIdx_x, ty = threadIdx_y, tz = __nvvm_read_ptx_sreg_tid_z();
      int bx = blockIdx_x, by = __nvvm_read_ptx_sreg_ctaid_y(), bz = __nvvm_read_ptx_sreg_ctaid_z();
      int t = tx + 5 * (ty + 3 * tz), b = bx + 2 * (by + 3 * bz);
      y[b * 60 + t] = b * 1000 + t;
    }"""
    y = np.zeros(2 * 3 * 2 * 60, np.int32)
    launch(source, [y], (2, 3, 2), (5, 3, 4))
    assert (y.reshape(12, 60) == np.arange(12)[:, None] * 1000 + np.arange(60)).all()


def test_what_lanes_have_read_they_have_before_a_shuffle() -> None:
    source = """KERNEL k(const float *x, float *y) {
      __shared__ float s[32]; int t = threadIdx_x;
      s[t] = x[t]; __syncwarp();
      float v = __nvvm_shfl_sync_bfly_f32(-1, s[t ^ 1], 2, 31);
      s[t] = v;
      v = __nvvm_shfl_sync_bfly_f32(-1, v, 2, 31);
      y[t] = AGAIN;
    }"""
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert launch(source.replace("AGAIN", "v"), [x, y]).faults == ()
    assert {f.kind for f in launch(source.replace("AGAIN", "s[31 - (int)x[t]]"), [x, y]).faults} == {"warp-race"}


APART = """KERNEL k(const int *x, int *y) {
  __shared__ int s[8];
  int t = threadIdx_x, w = t / 32, v = t;
  if (t < 8) s[t] = 0;
  __syncthreads();
  for (int round = 0; round < 6; round++) {
    if (w == x[round]) v += t % 3 ? 7 : round;  // lanes of one warp go apart
    if (t % 32 == 31) s[w] += v;
    __syncthreads();
    v += s[(w + 1) % 8];
    __syncthreads();
    if (round == 3 && w == 7) { y[t] = -v; return; }
  }
  y[t] = v;
}"""


@pytest.mark.parametrize("checks", ["all", "none"])
@pytest.mark.parametrize("schedule", [0, 5])
def test_warps_that_leave_the_others_between_barriers(checks: str, schedule: int) -> None:
    x, y = np.array([0, 3, 7, 7, 1, 5], np.int32), np.zeros(256, np.int32)
    launch(APART, [x, y], block=(256,), checks=checks, schedule=schedule)
    t, s = np.arange(256), np.zeros(8, int)
    w, v, gone = t // 32, t.copy(), np.zeros(256, bool)
    for number, warp in enumerate(x):
        v = np.where((w == warp) & ~gone, v + np.where(t % 3 != 0, 7, number), v)
        s += np.where(gone[31::32], 0, v[31::32])
        v = np.where(gone, v, v + s[(w + 1) % 8])
        if number == 3:
            v, gone = np.where(w == 7, -v, v), w == 7
    assert (y == v).all()
