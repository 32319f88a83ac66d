"""Kernels with one fault each, and their right twins: the kind and the line."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.ptx.cuda import launch, np


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    grid: tuple[int, ...] = (2,)
    block: tuple[int, ...] = (64,)
    dynamic: int = 0
    blank: bool = False
    ends: bool = False


PROGRAMS = [
    Program(
        "bound",
        """KERNEL k(float *x, float *y, int n) {
  int i = blockIdx_x * blockDim_x + threadIdx_x;
  if (i <= n) y[i] = 2.f;  // fault: out-of-bounds
}""",
    ),
    Program(
        "bound, right",
        """KERNEL k(float *x, float *y, int n) {
  int i = blockIdx_x * blockDim_x + threadIdx_x;
  if (i < n) y[i] = x[i] * 2.f;
}""",
    ),
    Program(
        "before the start",
        """KERNEL k(float *x, float *y, int n) {
  int i = threadIdx_x;
  y[i] = x[i - 1];  // fault: out-of-bounds
}""",
    ),
    Program(
        "null",
        """KERNEL k(float *x, float *y, int n) {
  float *p = (float *)(unsigned long)(n * 16);
  y[threadIdx_x] = p[threadIdx_x];  // fault: out-of-bounds
}""",
    ),
    Program(
        "shared bound",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  s[threadIdx_x] = x[threadIdx_x];
  __syncthreads();
  y[threadIdx_x] = s[threadIdx_x + n - 100];
  if (n == 100) y[threadIdx_x] = s[threadIdx_x + 1];  // fault: shared-out-of-bounds
}""",
        grid=(1,),
    ),
    Program(
        "far behind shared memory",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  s[threadIdx_x] = x[threadIdx_x];
  y[threadIdx_x] = s[threadIdx_x + 21 * n];  // fault: shared-out-of-bounds
}""",
        ends=True,
    ),
    Program(
        "dynamic shared bound",
        """KERNEL k(float *x, float *y, int n) {
  extern __shared__ float s[];
  s[threadIdx_x] = x[threadIdx_x];  // fault: shared-out-of-bounds
}""",
        dynamic=128,
    ),
    Program(
        "dynamic shared, right",
        """KERNEL k(float *x, float *y, int n) {
  extern __shared__ float s[];
  s[threadIdx_x] = x[threadIdx_x];
  y[threadIdx_x + blockIdx_x * 50] = s[threadIdx_x];
}""",
        dynamic=256,
        grid=(1,),
    ),
    Program(
        "local bound",
        """KERNEL k(float *x, float *y, int n) {
  float a[8];
  for (int j = 0; j < 8; j++) a[(j * n) & 7] = x[j];
  if (blockIdx_x == 0) y[threadIdx_x] = a[n & 15];  // fault: local-out-of-bounds
}""".replace("n & 15", "(n >> 2) & 15"),
    ),
    Program(
        "missing barrier",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  if (blockIdx_x == 0) y[t] = s[63 - t];  // fault: shared-race
}""",
    ),
    Program(
        "barrier, right",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncthreads();
  if (blockIdx_x == 0) y[t] = s[63 - t];
}""",
    ),
    Program(
        "barrier missing in a reduction",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncthreads();
  for (int j = 32; j > 0; j >>= 1) {
    if (t < j) s[t] += s[t + j];  // fault: warp-race
  }
  __syncthreads();
  if (t == 0) y[blockIdx_x] = s[0];
}""",
    ),
    Program(
        "reduction of a warp, right",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    float v = s[t] + s[t + 32];
    for (int j = 16; j > 0; j >>= 1) { s[t] = v; __syncwarp(); v += s[t ^ j]; __syncwarp(); }
    if (t == 0) y[blockIdx_x] = v;
  }
}""",
    ),
    Program(
        "missing syncwarp",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  y[t + 32 * blockIdx_x] = s[t ^ 1];  // fault: warp-race
}""",
        block=(32,),
    ),
    Program(
        "written by one of two readers",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  float v = 0;
  s[t] = x[t];
  __syncwarp();
  if (t < 2) v = s[0];
  if (t == 1) s[0] = v + 1.f;  // fault: warp-race
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
    Program(
        "written by the last of all readers",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncwarp();
  float v = s[0];
  if (t == 31) s[0] = v + 1.f;  // fault: warp-race
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
    Program(
        "written by one of two readers, right",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  float v = 0;
  s[t] = x[t];
  __syncwarp();
  if (t < 2) v = s[0];
  __syncwarp();
  if (t == 1) s[0] = v + 1.f;
  if (t == 1) s[0] = s[0] + 1.f;
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
    Program(
        "read by two warps, written by one",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncthreads();
  float v = s[0];
  __syncwarp();
  if (t == 40) s[0] = v + 1.f;  // fault: shared-race
  if (blockIdx_x == 0) y[t] = v;
}""",
    ),
    Program(
        "a tree in a warp",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  if (t % 16 == 0) { s[t] = x[t]; s[t + 8] = 2.f; }
  if (t % 8 == 0) s[t + 4] = s[t] + 3.f;  // fault: warp-race
  __syncwarp();
  y[t + 32 * blockIdx_x] = t % 4 == 0 ? s[t] : 0.f;
}""",
        block=(32,),
    ),
    Program(
        "a tree in a warp, right",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  if (t % 16 == 0) { s[t] = x[t]; s[t + 8] = 2.f; }
  __syncwarp();
  if (t % 8 == 0) s[t + 4] = s[t] + 3.f;
  __syncwarp();
  y[t + 32 * blockIdx_x] = t % 4 == 0 ? s[t] : 0.f;
}""",
        block=(32,),
    ),
    Program(
        "a tile written while others read the last one",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  float v = 0;
  for (int j = 0; j < 2; j++) {
    s[t] = x[t + j];  // fault: shared-race
    __syncthreads();
    for (int i = 0; i < 64; i++) v += s[i];  // fault: shared-race
    __syncwarp();
  }
  if (blockIdx_x == 0) y[t] = v;
}""",
    ),
    Program(
        "heads of warps that write if they have work",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[4];
  int t = threadIdx_x;
  if (t % 16 == 0 && t < 40) s[t / 16] = x[t];
  __syncthreads();
  if (blockIdx_x == 0) y[t] = t < 4 ? s[t] : 0.f;  // fault: shared-uninitialized-read
}""",
    ),
    Program(
        "uninitialized shared",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  if (t < 32) s[t] = x[t];
  __syncthreads();
  if (blockIdx_x == 0) y[t] = s[t];  // fault: shared-uninitialized-read
}""",
    ),
    Program(
        "uninitialized global",
        """KERNEL k(float *x, float *y, int n) {
  y[threadIdx_x] += x[threadIdx_x];  // fault: uninitialized-read
}""",
        grid=(1,),
        blank=True,
    ),
    Program(
        "initialized global, right",
        """KERNEL k(float *x, float *y, int n) {
  y[threadIdx_x] = 0;
  y[threadIdx_x] += x[threadIdx_x];
}""",
        grid=(1,),
        blank=True,
    ),
    Program(
        "misaligned",
        """KERNEL k(float *x, float *y, int n) {
  float4 v = *(float4 *)(x + 4 * (threadIdx_x & 7) + 1);  // fault: misaligned
  y[threadIdx_x] = v.x + v.w;
}""",
    ),
    Program(
        "aligned, right",
        """KERNEL k(float *x, float *y, int n) {
  float4 v = *(float4 *)(x + 4 * (threadIdx_x & 7));
  if (blockIdx_x == 0) y[threadIdx_x] = v.x + v.w;
}""",
    ),
    Program(
        "blocks write the same",
        """KERNEL k(float *x, float *y, int n) {
  y[threadIdx_x] = x[threadIdx_x] + blockIdx_x;  // fault: block-conflict
}""",
    ),
    Program(
        "blocks add, lost",
        """KERNEL k(float *x, float *y, int n) {
  float v = y[0] + x[threadIdx_x];  // fault: block-conflict
  if (threadIdx_x == 0) y[0] = v;  // fault: block-conflict
}""",
    ),
    Program(
        "a part of a sum",
        """KERNEL k(float *x, float *y, int n) {
  __nvvm_atom_add_gen_f(y, x[threadIdx_x]);
  __syncthreads();
  if (threadIdx_x < 32) y[1 + blockIdx_x * 32 + threadIdx_x] = x[threadIdx_x] / y[0];  // fault: block-conflict
}""",
    ),
    Program(
        "each block's own sum",
        """KERNEL k(float *x, float *y, int n) {
  __nvvm_atom_add_gen_f(y + blockIdx_x, x[threadIdx_x]);
  __syncthreads();
  if (threadIdx_x == 0) y[2 + blockIdx_x] = y[blockIdx_x] + 1.f;
}""",
    ),
    Program(
        "the sum is cleared while others add",
        """KERNEL k(float *x, float *y, int n) {
  if (blockIdx_x == 0 && threadIdx_x == 0) y[0] = 0.f;
  __syncthreads();
  __nvvm_atom_add_gen_f(y, x[threadIdx_x]);  // fault: block-conflict
}""",
    ),
    Program(
        "blocks add, right",
        """KERNEL k(float *x, float *y, int n) {
  if (threadIdx_x == 0) __nvvm_atom_add_gen_f(y, x[blockIdx_x]);
}""",
    ),
    Program(
        "barrier in a branch",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  s[t] = x[t];
  if (t < 32) {
    __syncthreads();  // fault: divergent-barrier
    s[t] += 1.f;
  } else {
    __syncthreads();
    s[t] -= 1.f;
  }
  if (blockIdx_x == 0) y[t] = s[t];
}""",
    ),
    Program(
        "return before the barrier",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ float s[64];
  int t = threadIdx_x;
  if (t >= 40) return;
  s[t] = x[t];
  __syncthreads();  // fault: missed-barrier
  if (blockIdx_x == 0) y[t] = s[39 - t];
}""",
    ),
    Program(
        "shuffle without all lanes",
        """KERNEL k(float *x, float *y, int n) {
  int t = threadIdx_x, v = t;
  if (t < 16) v = __nvvm_shfl_sync_down_i32(0xffffffff, v, 1, 31);  // fault: missing-lanes
  if (blockIdx_x == 0) y[t] = v;
}""",
    ),
    Program(
        "shuffle of half a warp, right",
        """KERNEL k(float *x, float *y, int n) {
  int t = threadIdx_x, v = t;
  if (t % 32 < 16) v = __nvvm_shfl_sync_down_i32(0xffff, v, 1, 0x101f);
  if (blockIdx_x == 0) y[t] = v;
}""",
    ),
    Program(
        "a sync of other lanes",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  s[t] = x[t];
  if (t < 16) __syncwarp(0xffff);
  else __syncwarp(0xffff0000);
  y[t + 32 * blockIdx_x] = s[31 - t];  // fault: warp-race
}""",
        block=(32,),
    ),
    Program(
        "a sync of these lanes",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  s[t] = x[t];
  if (t < 16) __syncwarp(0xffff);
  else __syncwarp(0xffff0000);
  y[t + 32 * blockIdx_x] = s[t ^ 15];
}""",
        block=(32,),
    ),
    Program(
        "overwritten by lanes that have not met the reader",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  s[t] = x[t];
  __syncwarp();
  float v = s[t ^ 16];
  unsigned half = t < 16 ? 0xffff : 0xffff0000;
  __syncwarp(half);
  s[t] = v + 1.f;  // fault: warp-race
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
    Program(
        "overwritten by lanes that another one has told",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  if (t < 3) {
    if (t == 0) s[0] = x[0];
    if (t < 2) __syncwarp(3);
    if (t > 0) __syncwarp(6);
    if (t == 2) y[32 * blockIdx_x] = s[0];
  }
}""",
        block=(32,),
    ),
    Program(
        "read before the one that tells has met the writer",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  if (t < 3) {
    if (t > 0) __syncwarp(6);
    if (t == 0) s[0] = x[0];
    if (t < 2) __syncwarp(3);
    if (t == 2) y[32 * blockIdx_x] = s[0];  // fault: warp-race
  }
}""",
        block=(32,),
    ),
    Program(
        "a tile of eight",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  unsigned tile = 0xffu << (t & 24);
  float v = x[t];
  for (int j = 4; j > 0; j >>= 1) { s[t] = v; __syncwarp(tile); v += s[t ^ j]; __syncwarp(tile); }
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
    Program(
        "a tile of eight that reaches beyond itself",
        """KERNEL k(float *x, float *y, int n) {
  __shared__ volatile float s[32];
  int t = threadIdx_x;
  unsigned tile = 0xffu << (t & 24);
  float v = x[t];
  for (int j = 8; j > 0; j >>= 1) {
    s[t] = v;  // fault: warp-race
    __syncwarp(tile);
    v += s[t ^ j];  // fault: warp-race
    __syncwarp(tile);
  }
  y[t + 32 * blockIdx_x] = v;
}""",
        block=(32,),
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_fault(program: Program) -> None:
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    done = launch(
        program.source,
        [x, y, 100],
        program.grid,
        program.block,
        dynamic=program.dynamic,
        blank=[y] if program.blank else [],
    )
    lines = program.source.splitlines()
    expected = [
        (number, found[1]) for number, line in enumerate(lines, 1) if (found := re.search(r"// fault: (\S+)", line))
    ]
    first = [(fault.line, fault.kind) for fault in done.faults]
    assert sorted(set(first)) == sorted(expected), [fault.message for fault in done.faults]
    assert all(fault.file.endswith("kernel.cu") for fault in done.faults)
    ends = program.ends or any(kind in ("out-of-bounds", "local-out-of-bounds", "misaligned") for _, kind in expected)
    assert (done.trap is not None) == ends


def test_what_lies_before_a_pointers_allocation_is_named_by_that_pointer() -> None:
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    source = "KERNEL k(const float *x, float *y) { int i = threadIdx_x; y[i] = x[i - 1]; }"
    (fault,) = launch(source, [x, y], (1,), (32,)).faults
    assert fault.kind == "out-of-bounds"
    assert fault.message.endswith("reads 4 bytes, 4 bytes before the beginning of argument 0")


def test_a_fault_names_block_thread_and_argument() -> None:
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    done = launch(PROGRAMS[0].source, [x, y, 100], (2,), (64,))
    fault = done.faults[0]
    assert (fault.block, fault.thread, fault.argument) == ((1, 0, 0), (36, 0, 0), "argument 1")
    assert fault.message == "Thread (36, 0, 0) of block (1, 0, 0) writes 4 bytes, 0 bytes behind the end of argument 1"
    assert done.trap == "cudaErrorIllegalAddress"


@pytest.mark.parametrize("checks", ["sample", "none"])
def test_without_checks_nothing_outside_is_touched(checks: str) -> None:
    memory = np.zeros(4096, np.float32)
    y = memory[:100]
    source = "KERNEL k(float *y, int n) { y[blockIdx_x * blockDim_x + threadIdx_x] = 1.f; }"
    done = launch(source, [y, 100], (20,), (64,), checks=checks)
    assert done.trap == "cudaErrorIllegalAddress"
    assert memory[100:].sum() == 0


def test_what_a_launch_has_counted_is_no_conflict_of_a_later_one() -> None:
    source = "KERNEL k(float *x) { x[blockIdx_x * 256 + threadIdx_x] = 1.f; }"
    x = np.zeros(254 * 256, np.float32)  # its notes are as long as those of the lines that were counted
    for _ in range(3):
        assert not launch(source, [x], (254,), (256,)).faults


def test_flags_that_several_set_are_no_fault() -> None:
    """As in Rodinia's BFS, and in every "has anything changed?"."""
    source = """KERNEL k(const float *x, float *flag, float *y) {
  __shared__ float s;
  if (threadIdx_x == 0) s = 0;
  __syncthreads();
  if (x[threadIdx_x] > 0) s = 1, flag[0] = 1;
  __syncthreads();
  y[blockIdx_x * 64 + threadIdx_x] = s;
}"""
    x, flag, y = np.ones(64, np.float32), np.zeros(1, np.float32), np.zeros(256, np.float32)
    done = launch(source, [x, flag, y], (4,), (64,))
    assert (flag[0], y.sum()) == (1, 256)
    assert [fault.kind for fault in done.faults] == ["same-value"]
    other = source.replace("flag[0] = 1", "flag[0] = blockIdx_x / 2").replace("s = 1", "s = threadIdx_x / 32")
    kinds = [fault.kind for fault in launch(other, [x, flag, y], (4,), (64,)).faults]
    assert {"block-conflict", "shared-race"} <= {*kinds}
    assert "same-value" not in kinds  # of two blocks that wrote the same beside two that did not


def test_all_blocks_that_write_what_one_writes_lack_an_index() -> None:
    """The values are the same, but an index without `blockIdx` leaves the rest of the result unwritten."""
    source = """KERNEL k(const float *x, float *y) {
  int i = PLACE;
  y[i] = 2 * x[i];
}"""
    x, y = np.ones(1024, np.float32), np.zeros(1024, np.float32)

    def kinds(place: str) -> list[str]:
        return [fault.kind for fault in launch(source.replace("PLACE", place), [x, y], (4, 2), (64,)).faults]

    assert kinds("threadIdx_x") == kinds("blockIdx_x * 64 + threadIdx_x") == ["block-conflict"]
    assert kinds("(blockIdx_y * 4 + blockIdx_x) * 64 + threadIdx_x") == []
    assert kinds("(blockIdx_y * 4 + blockIdx_x) * 32 + threadIdx_x") == ["same-value"]  # halves overlap: a margin


def test_what_lies_between_the_members_of_a_structure_is_a_remark() -> None:
    source = """struct Point { float x; char c; double d; };
KERNEL k(Point *p, Point *q) {
  int i = threadIdx_x;
  p[i].x = 1, p[i].c = 2, p[i].d = 3;
  __syncthreads();
  q[i] = p[31 - i];
}"""
    p, q = np.zeros(32 * 16, np.uint8), np.zeros(32 * 16, np.uint8)
    done = launch(source, [p, q], (1,), (32,), blank=[p])
    assert [fault.kind for fault in done.faults] == ["partly-uninitialized-read"]
    assert (p == q).all()
    unset = launch(source.replace("p[i].x = 1, p[i].c = 2,", ""), [p, q], (1,), (32,), blank=[p])
    assert [fault.kind for fault in unset.faults] == ["uninitialized-read"]
