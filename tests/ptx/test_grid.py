"""Blocks that wait for each other: the grid's barrier, barriers made by hand, and what orders their accesses."""

from __future__ import annotations

import pytest

from tests.ptx.cuda import launch, np

BARRIER = """extern "C" __device__ unsigned cudaCGSynchronize(unsigned long, unsigned);
extern "C" __device__ unsigned long cudaCGGetIntrinsicHandle(unsigned);
"""
ROTATE = (
    BARRIER
    + """KERNEL k(int *x, int *y, int turns) {
  __shared__ int kept[32];
  int t = threadIdx_x, i = blockIdx_x * blockDim_x + t, n = gridDim_x * blockDim_x;
  kept[t] = i;
  for (int turn = 0; turn < turns; turn++) {
    y[i] = x[(i + blockDim_x) % n] + kept[t] - i;
    cudaCGSynchronize(cudaCGGetIntrinsicHandle(1), 0);
    x[i] = y[i];
    cudaCGSynchronize(cudaCGGetIntrinsicHandle(1), 0);
  }
}"""
)


@pytest.mark.parametrize(("checks", "schedule"), [("all", 0), ("all", 3), ("sample", 0), ("none", 5)])
def test_all_blocks_wait_for_each_other(checks: str, schedule: int) -> None:
    x = np.arange(20 * 32, dtype=np.int32)
    y = np.zeros_like(x)
    done = launch(ROTATE, [x, y, 7], (20,), (32,), checks=checks, schedule=schedule)
    assert (x == np.roll(np.arange(20 * 32), -7 * 32)).all()
    assert done.faults == ()
    assert done.counters.grid_barriers == 14


def test_a_block_that_ends_leaves_the_others_waiting() -> None:
    source = (
        BARRIER
        + """KERNEL k(int *x) {
      if (blockIdx_x == 1) return;
      cudaCGSynchronize(1, 0);
      x[0] = 1;
    }"""
    )
    done = launch(source, [np.zeros(1, np.int32)], (3,))
    assert done.trap == "cudaErrorLaunchTimeout"
    assert (done.faults[0].kind, done.faults[0].line) == ("deadlock", 5)
    assert "whole grid" in done.faults[0].message


def test_without_the_barrier_blocks_conflict() -> None:
    source = ROTATE.replace("cudaCGSynchronize(cudaCGGetIntrinsicHandle(1), 0);", "", 1)
    x = np.arange(64, dtype=np.int32)
    done = launch(source, [x, np.zeros_like(x), 2], (2,), (32,))
    assert {fault.kind for fault in done.faults} == {"block-conflict"}


LAST = """__device__ int done;
KERNEL k(int *x, int *parts, int *total) {
  __shared__ int last;
  int t = threadIdx_x;
  parts[blockIdx_x * 32 + t] = x[blockIdx_x * 32 + t] * 2;
  FENCE
  __syncthreads();
  if (t == 0) last = __nvvm_atom_add_gen_i(&done, 1) == gridDim_x - 1;
  __syncthreads();
  if (last) {
    int sum = 0;
    for (int b = 0; b < gridDim_x; b++) sum += parts[b * 32 + t];
    total[t] = sum;
  }
}"""


@pytest.mark.parametrize("fence", ["__nvvm_membar_gl();", ""])
def test_the_last_block_reads_what_others_wrote_before_their_fence(fence: str) -> None:
    # https://docs.nvidia.com/cuda/cuda-c-programming-guide, "Memory Fence Functions"
    x = np.arange(128, dtype=np.int32)
    total = np.zeros(32, np.int32)
    found = launch(LAST.replace("FENCE", fence), [x, np.zeros(128, np.int32), total], (4,))
    assert (total == 2 * x.reshape(4, 32).sum(0)).all()
    assert [fault.kind for fault in found.faults] == ([] if fence else ["block-conflict"])


BY_HAND = """KERNEL k(volatile int *arrived, int *x, int *y) {
  int t = threadIdx_x, i = blockIdx_x * 32 + t;
  x[i] = i;
  __nvvm_membar_gl();
  __syncthreads();
  if (t == 0) {
    __nvvm_atom_add_gen_i((int *)arrived, 1);
    while (*arrived < gridDim_x) ;
    __nvvm_membar_gl();
  }
  __syncthreads();
  y[i] = x[(i + 32) % (gridDim_x * 32)];
}"""


ADDS_NOTHING = "__nvvm_atom_add_gen_i((int *)arrived, 0)"


@pytest.mark.parametrize(("schedule", "asks"), [(0, "*arrived"), (2, "*arrived"), (2, ADDS_NOTHING)])
def test_a_barrier_made_by_hand(schedule: int, asks: str) -> None:
    x, y = (np.zeros(8 * 32, np.int32) for _ in range(2))
    done = launch(BY_HAND.replace("*arrived <", f"{asks} <"), [np.zeros(1, np.int32), x, y], (8,), schedule=schedule)
    assert (y == np.roll(np.arange(8 * 32), -32)).all()
    assert done.faults == ()


def test_a_barrier_made_by_hand_needs_all_blocks_on_the_gpu() -> None:
    x, y = (np.zeros(8 * 32, np.int32) for _ in range(2))
    done = launch(BY_HAND, [np.zeros(1, np.int32), x, y], (8,), most_resident=7)
    assert done.trap == "cudaErrorLaunchTimeout"
    assert (done.faults[0].kind, done.faults[0].line) == ("endless-wait", 8)


def test_warps_of_a_block_hand_over_by_a_flag() -> None:
    source = """KERNEL k(int *y) {
      __shared__ volatile int flag, value;
      if (threadIdx_x == 0) flag = 0;
      __syncthreads();
      if (threadIdx_x == 0) { while (flag == 0) ; y[0] = value; }
      else if (threadIdx_x == 32) { value = 42; __nvvm_membar_cta(); flag = 1; }
    }"""
    y = np.zeros(1, np.int32)
    done = launch(source, [y], block=(64,), checks="none")
    assert y[0] == 42
    assert done.trap is None
