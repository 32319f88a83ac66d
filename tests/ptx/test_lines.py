"""Registers that are one number for a whole warp: the same values as lane by lane, in blocks of any shape."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import launch, np
from windtunnel.ptx.line import UNKNOWN, shape_of

SHAPES = (
    (16, 16), (8, 8), (4, 4, 4), (2, 4, 8), (16, 6), (33, 2), (5, 5, 5), (48,), (1, 64), (64, 2), (128,), (100,),
)  # fmt: skip
WALK = """
#define threadIdx_z __nvvm_read_ptx_sreg_tid_z()
#define blockDim_y __nvvm_read_ptx_sreg_ntid_y()
KERNEL k(const int *x, int *o, int n) {
  int t = threadIdx_x + blockDim_x * (threadIdx_y + blockDim_y * threadIdx_z), all = 0;
  for (int i = threadIdx_x; i < n; i += blockDim_x) all += x[i] * (threadIdx_y + 1);
  for (int i = 0; i < threadIdx_z; i++) all += 1000;
  if (threadIdx_y & 1)
    for (int i = threadIdx_x & 3; i < 9; i++) all ^= i;
  o[t] = all + (threadIdx_x << 4 | threadIdx_y >> 1);
}"""
WRAPS = """KERNEL k(unsigned long long *o, unsigned start) {
  unsigned i = start + threadIdx_x;
  o[threadIdx_x] = (unsigned long long)i * 3;
  o[64 + threadIdx_x] = (unsigned long long)((long long)(int)i * 5);
  for (unsigned q = i, c = 0; c < 3; c++, q += 16) o[128 + c * 64 + threadIdx_x] = (unsigned long long)q + 1;
}"""
APART = """KERNEL k(const int *n, int *o) {
  int t = threadIdx_x, i = t, turns = 0;
  for (; i < n[t]; i += 3) turns++;
  o[t] = i;
  o[32 + t] = turns;
  int v = 5;
  if (t >= 16) v = n[40];
  o[64 + t] = v + t;
}"""


def walked(x: object, block: tuple[int, ...]) -> list[int]:
    """What WALK computes, thread by thread."""
    width, height, depth = (*block, 1, 1)[:3]
    found = []
    for t in range(width * height * depth):
        a, b, c = t % width, t // width % height, t // (width * height)
        total = sum(int(x[i]) * (b + 1) for i in range(a, len(x), width)) + 1000 * c
        for i in range(a & 3, 9) if b & 1 else ():
            total ^= i
        found.append(total + (a << 4 | b >> 1))
    return found


@pytest.mark.parametrize("checks", ["all", "none"])
@pytest.mark.parametrize("block", SHAPES, ids=str)
def test_threads_of_every_shape_compute_their_own(block, checks):
    x = np.arange(50, dtype=np.int32)
    out = np.zeros(int(np.prod(block)), np.int32)
    launch(WALK, [x, out, 50], block=block, checks=checks)
    assert out.tolist() == walked(x, block)


def test_lanes_that_wrap_around_go_on_by_themselves() -> None:
    out = np.zeros(320, np.uint64)
    launch(WRAPS, [out, -20], block=(64,))
    lanes = [(2**32 - 20 + t) % 2**32 for t in range(64)]
    signed = [lane - 2**32 if lane >= 2**31 else lane for lane in lanes]
    stepped = [(lane + 16 * c) % 2**32 + 1 for c in range(3) for lane in lanes]
    assert out.tolist() == [lane * 3 for lane in lanes] + [lane * 5 % 2**64 for lane in signed] + stepped


def test_lanes_that_were_apart_keep_their_own_numbers() -> None:
    ends = np.arange(41, dtype=np.int32) * 5 % 37
    out = np.zeros(96, np.int32)
    launch(APART, [ends, out])
    turns = [max(0, -(-(int(ends[t]) - t) // 3)) for t in range(32)]
    assert out[32:64].tolist() == turns
    assert out[:32].tolist() == [t + 3 * turn for t, turn in enumerate(turns)]
    assert out[64:].tolist() == [(int(ends[40]) if t >= 16 else 5) + t for t in range(32)]


def test_what_a_lane_has_that_takes_no_part_is_no_number() -> None:
    source = """KERNEL k(const float *x, float *o, int n) {
  float v = x[threadIdx_x], w = 0;
  for (int d = 16; d; d /= 2) {
    float u = __nvvm_shfl_sync_down_f32(0xffffffff, v + w, d, 31);
    w += threadIdx_x + d < n ? u : 0;
  }
  o[threadIdx_x] = w + v;
  o[32 + threadIdx_x] = __nvvm_shfl_sync_down_f32(0xffffffff, v, 16, 31);
}"""
    x, out = np.arange(20, dtype=np.float32), np.zeros(64, np.float32)
    launch(source, [x, out, 20], block=(20,))
    assert out[0] == x.sum()  # of the lanes that are there
    assert out[32:36].tolist() == [16, 17, 18, 19]
    assert np.isnan(out[36:48]).all()  # on a GPU undefined


def test_shapes_of_which_nothing_is_known() -> None:
    assert shape_of((33, 2, 1)) == UNKNOWN
    first, second, third = shape_of((8, 4, 2))
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.offsets[9], second.offsets[9], third.same) == (1, 1, True)
