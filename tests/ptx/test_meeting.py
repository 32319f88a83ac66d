"""Lanes that are apart meet again at the instructions that name them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.ptx.cuda import compiled, launch, np
from windtunnel.ptx.meeting import ranks
from windtunnel.ptx.syntax import parse
from windtunnel.ptx.variants import Prepared, prepare


def prepared(code: str) -> Prepared:
    source = parse(code)
    return prepare(source, source.functions["k"])


SCAN = """KERNEL k(const float *u, float *y, int steps, int n) {
  int t = threadIdx_x; float s = 0;
  for (int i = 0; i < steps; i++) {
    s += u[i * n + t]; float v = s;
    for (int o = n / 2; o > 0; o >>= 1) v += __nvvm_shfl_sync_down_f32((int)((1ull << n) - 1), v, o, 31);
    if (t == 0) y[i] = v;
  }
}"""


@pytest.mark.parametrize("lanes", [4, 16, 32])
@pytest.mark.parametrize("schedule", [0, 5])
def test_lanes_meet_again_in_each_turn_of_a_loop(lanes: int, schedule: int) -> None:
    u = np.random.default_rng(lanes).integers(0, 9, (20, lanes)).astype(np.float32)
    y = np.zeros(20, np.float32)
    done = launch(SCAN, [u, y, 20, lanes], block=(lanes,), schedule=schedule)
    assert done.faults == ()
    assert (y == u.cumsum(0).sum(1)).all()


def test_lanes_that_leave_a_loop_early_are_waited_for() -> None:
    source = """KERNEL k(const int *x, int *y) {
      int t = threadIdx_x, v = 1;
      for (int i = 0; i < x[t]; i++) { v = v * 3 + 1; if (v > 100000) { y[t] = -1; v %= 7; } }
      y[32 + t] = __nvvm_shfl_sync_bfly_i32(-1, v, 1, 31) + __nvvm_vote_ballot_sync(-1, v & 1);
    }"""
    x = np.random.default_rng(3).integers(0, 40, 32).astype(np.int32)
    y = np.zeros(64, np.int32)
    assert launch(source, [x, y]).faults == ()
    values = []
    for count in x:
        v = 1
        for _ in range(count):
            v = v * 3 + 1
            v = v % 7 if v > 100000 else v
        values.append(v)
    ballot = sum((v & 1) << i for i, v in enumerate(values))
    expected = (np.array([values[i ^ 1] for i in range(32)], np.int64) + ballot).astype(np.int32)
    assert (y[32:] == expected).all()


def test_halves_of_a_warp_use_masks_of_their_own() -> None:
    source = """KERNEL k(const int *x, int *y) {
      int t = threadIdx_x, mask = 0xffff << (t & 16), v = x[t];
      y[t] = __nvvm_vote_ballot_sync(mask, v & 1);
      y[32 + t] = __nvvm_redux_sync_add(v, mask);
      y[64 + t] = __nvvm_match_any_sync_i32(mask, v & 3);
      y[96 + t] = __nvvm_vote_all_sync(mask, v < 50);
      if (t & 16) y[128 + t] = __nvvm_redux_sync_max(v, mask);
      else y[128 + t] = __nvvm_redux_sync_min(v, mask);
    }"""
    x = np.random.default_rng(4).integers(-50, 60, 32).astype(np.int32)
    y = np.zeros(160, np.int32)
    assert launch(source, [x, y]).faults == ()
    half = [x[:16], x[16:]]
    ballots = [sum(int(v & 1) << (i + 16 * h) for i, v in enumerate(half[h])) for h in (0, 1)]
    assert list(y[:32].view(np.uint32)) == [ballots[t // 16] for t in range(32)]
    assert list(y[32:64]) == [half[t // 16].sum() for t in range(32)]
    same = [sum(1 << j for j in range(32) if j // 16 == t // 16 and (x[j] & 3) == (x[t] & 3)) for t in range(32)]
    assert list(y[64:96].view(np.uint32)) == same
    assert list(y[96:128]) == [int((half[t // 16] < 50).all()) for t in range(32)]
    assert list(y[128:]) == [half[0].min()] * 16 + [half[1].max()] * 16


def test_lanes_meet_at_two_syncwarps_in_two_branches() -> None:
    source = """KERNEL k(int *y) {
      __shared__ int s[32]; int t = threadIdx_x;
      if (t < 16) { s[t] = t; __syncwarp(); y[t] = s[t + 16]; }
      else { s[t] = 5 * t; __syncwarp(); y[t] = s[t - 16]; }
    }"""
    y = np.zeros(32, np.int32)
    launch(source, [y])
    assert list(y) == [5 * (t + 16) for t in range(16)] + list(range(16))


def test_lanes_that_never_come_are_a_fault_and_those_that_ended_are_not() -> None:
    waits = "KERNEL k(int *y) { int t = threadIdx_x; %s y[t] = __nvvm_shfl_sync_bfly_i32(-1, t, 1, 31);\n}"
    y = np.zeros(32, np.int32)
    assert launch(waits % "if (t >= 16) return;", [y]).faults == ()
    assert list(y[:16]) == [t ^ 1 for t in range(16)]
    missing = launch(waits % "if (t < 16) { __syncthreads(); return; }", [y])
    assert "missing-lanes" in {f.kind for f in missing.faults}
    assert {f.line for f in missing.faults if f.kind == "missing-lanes"} == {1}


def test_blocks_of_a_loop_come_before_what_follows_it() -> None:
    # 0 -> 1 (head) -> 2 -> 4 (latch) -> 1; 2 -> 5 (body at the end of the text) -> 4; 1 -> 3 (after the loop)
    found = ranks([[1], [2, 3], [4, 5], [], [1], [4]])
    assert sorted(found) == list(range(7))
    assert [a < b for a, b in pairwise(found[i] for i in (0, 1, 2, 5, 4, 3))] == [True] * 5
    assert found[6] == 6


BRANCHES = """KERNEL k(const int *x, unsigned *y) {
  int t = threadIdx_x, v = x[t];
  unsigned got, votes, same, most;
  if (v & 1) {
    got = __nvvm_shfl_sync_bfly_i32(-1, v + 1000, 1, 31);
    got += __nvvm_shfl_sync_bfly_i32(-1, v * 2, 3, 31);
    votes = __nvvm_vote_ballot_sync(-1, v > 0);
    same = __nvvm_match_any_sync_i64(-1, v % 3 * (1ll << 40));
    most = __nvvm_redux_sync_max(v, -1);
  } else {
    got = __nvvm_shfl_sync_bfly_i32(-1, v + 2000, 1, 31);
    got += __nvvm_shfl_sync_bfly_i32(-1, v * 3, 3, 31);
    votes = __nvvm_vote_ballot_sync(-1, v < 0);
    same = __nvvm_match_any_sync_i64(-1, v % 5 * (1ll << 40));
    most = __nvvm_redux_sync_max(v, -1);
  }
  y[t] = got; y[32 + t] = votes; y[64 + t] = same; y[96 + t] = most;
}"""


@pytest.mark.parametrize("schedule", [0, 7])
def test_lanes_of_two_branches_meet_at_one_kind_of_instruction(schedule: int) -> None:
    x = np.random.default_rng(5).integers(-50, 60, 32).astype(np.int32)
    y = np.zeros(128, np.uint32)
    assert launch(BRANCHES, [x, y], schedule=schedule).faults == ()
    odd = (x & 1).astype(bool)
    first, second = np.where(odd, x + 1000, x + 2000), np.where(odd, x * 2, x * 3)
    lane = np.arange(32)
    assert (y[:32].view(np.int32) == first[lane ^ 1] + second[lane ^ 3]).all()
    votes = np.where(odd, x > 0, x < 0)
    assert set(y[32:64].tolist()) == {sum(int(v) << i for i, v in enumerate(votes))}
    keys = np.where(odd, np.fmod(x, 3), np.fmod(x, 5))
    assert y[64:96].tolist() == [sum(1 << j for j in range(32) if keys[j] == keys[i]) for i in range(32)]
    assert set(y[96:].view(np.int32).tolist()) == {int(x.max())}


def test_lanes_of_two_branches_need_one_kind_of_instruction_and_one_mask() -> None:
    other = BRANCHES.replace("shfl_sync_bfly_i32(-1, v * 3, 3", "shfl_sync_down_i32(-1, v * 3, 3")
    x = np.arange(32, dtype=np.int32)
    done = launch(other, [x, np.zeros(128, np.uint32)])
    assert {f.kind for f in done.faults} == {"missing-lanes"}
    masks = BRANCHES.replace("bfly_i32(-1, v + 2000", "bfly_i32(v, v + 2000")
    done = launch(masks, [x, np.zeros(128, np.uint32)])
    assert {f.kind for f in done.faults} == {"missing-lanes"}


def test_lanes_of_two_branches_do_not_meet_before_volta() -> None:
    old = BRANCHES.replace("__nvvm_match_any_sync_i64(-1, ", "(").replace("__nvvm_redux_sync_max(v, -1)", "v")
    code = compiled(old)
    assert prepared(code).graph.apart
    assert not prepared(code.replace(".target sm_80", ".target sm_61")).graph.apart


TREE = """KERNEL k(int *x, int *y) {
  int t = threadIdx_x, v = x[t];
  for (int n = 16; n; n /= 2) v += __nvvm_shfl_sync_down_i32(-1, v, n, 31);
  if (t == 0) y[0] = v;
}"""
HALF = """KERNEL k(int *x, int *y) {
  int t = threadIdx_x, v = x[t];
  if (t < 16) {
    for (int n = 8; n; n /= 2) v += __nvvm_shfl_sync_down_i32(0xffff, v, n, 31);
    if (t < %d) y[t] = v;
  }
}"""
RETURNED = """KERNEL k(int *x, int *y) {
  int t = threadIdx_x;
  if (t >= 20) return;
  int v = x[t], other = __nvvm_shfl_sync_down_i32(-1, v, 4, 31);
  y[t] = %s ? v + other : v;
}"""
OF_HALVES = """KERNEL k(int *x, int *y) {
  int t = threadIdx_x;
  y[t] = __nvvm_shfl_sync_bfly_i32(t < 16 ? 0xffff : 0xffff0000, x[t], %d, 31);
}"""


@pytest.mark.parametrize(
    ("source", "block", "found"),
    [
        (TREE, 32, []),
        (TREE, 16, [16]),
        (HALF % 1, 32, []),
        (HALF % 2, 32, [16]),
        (RETURNED % "t < 16", 32, []),
        (RETURNED % "t < 17", 32, [20]),
        (OF_HALVES % 8, 32, []),
        (OF_HALVES % 16, 32, [16]),
    ],
)
def test_a_result_that_depends_on_an_absent_lane_is_a_fault(source: str, block: int, found: list[int]) -> None:
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    done = launch(source, [x, y], block=(block,))
    assert {fault.kind for fault in done.faults} == ({"absent-lane"} if found else set())
    assert all(f"what lane {lane} has" in fault.message for lane, fault in zip(found, done.faults, strict=True))
    assert y[0] == {TREE: x[:block].sum() - (block < 32) * 16, HALF: 120}.get(source, y[0])
