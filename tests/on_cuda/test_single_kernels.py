"""`torch.cuda._compile_kernel`, jiterator and `windtunnel kernel`, beside PyTorch's own values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.schemas import conforms
from windtunnel import emulate, gpus
from windtunnel.compiler.clang import CompileError
from windtunnel.errors import UnsupportedError, UsageError
from windtunnel.session import Session
from windtunnel.single_kernel import run

SAXPY = r"""
__global__ void saxpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = a * x[i] + y[i];
}
"""


def test_a_compiled_kernel_computes(session: Session) -> None:
    code = 'extern "C" __global__ void add(const float *a, const float *b, float *c, int n) {\n'
    code += "int i = threadIdx.x + blockIdx.x * blockDim.x; if (i < n) c[i] = a[i] + b[i]; }"
    kernel = torch.cuda._compile_kernel(code, "add")
    a, b = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
    c = torch.empty_like(a)
    kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[a, b, c, a.numel()])
    assert torch.equal(c, a + b)
    with pytest.raises(ValueError, match="must be CUDA tensors or pinned"):
        kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[a.cpu(), b, c, a.numel()])
    with pytest.raises(RuntimeError, match="CUDA error: invalid argument"):
        kernel(grid=(1, 1, 1), block=(2048, 1, 1), args=[a, b, c, a.numel()])


def test_an_instance_of_a_template_is_compiled(session: Session) -> None:
    code = "template <typename T, int N> __global__ void scale(T *x) { x[threadIdx.x] *= N; }"
    kernel = torch.cuda._compile_kernel(code, "scale<float, 3>")
    x = torch.arange(8.0, device="cuda")
    kernel(block=(8, 1, 1), args=[x])
    assert x.tolist() == [3.0 * i for i in range(8)]


def test_blocks_that_are_not_looked_at_have_written_as_well(session: Session) -> None:
    fill = torch.cuda._compile_kernel(
        r'extern "C" __global__ void fill(float *y) { y[blockIdx.x * 32 + threadIdx.x] = 1.f; }', "fill"
    )
    turn = torch.cuda._compile_kernel(
        r"""extern "C" __global__ void turn(const float *x, float *y) {
          y[blockIdx.x * 32 + threadIdx.x] = x[(blockIdx.x + 1) % gridDim.x * 32 + threadIdx.x];
        }""",
        "turn",
    )
    for _ in range(4):  # the first two launches are looked at whole
        x = torch.empty(400 * 32, device="cuda")
        y = torch.empty_like(x)
        fill(grid=(400, 1, 1), block=(32, 1, 1), args=[x])
        turn(grid=(400, 1, 1), block=(32, 1, 1), args=[x, y])
        assert y.sum() == 400 * 32
    assert not [found for found in session.findings() if found.code == "cuda-uninitialized"]


SCALE = (
    "__global__ void scale(float *x, float a, int n) { int i = threadIdx.y * 8 + threadIdx.x; if (i < n) x[i] *= a; }"
)


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ("scale<<<n, 32>>>(float[32], 2, 32)", "something else than numbers"),
        ("scale<<<1, 32>>>(float[32]=abc, 2, 32)", "is filled with no number"),
        ("scale<<<1, 32>>>(float[99999999999], 2, 32)", "too large an array"),
        ("scale<<<1, 32>>>(float[32], 2, 32.5)", "'32.5' is no whole number"),
    ],
)
def test_mistakes_in_a_launch_are_said(tmp_path: Path, launch: str, said: str) -> None:
    file = tmp_path / "scale.cu"
    file.write_text(SCALE)
    with pytest.raises(UsageError, match=said):
        run(file, launch, gpus.find("H100"))


def test_numbers_of_a_launch_are_of_the_parameters_types(tmp_path: Path) -> None:
    file = tmp_path / "scale.cu"
    file.write_text(SCALE)
    done = run(file, "scale<<<dim3(1, 1), dim3(8, 4)>>>(float[32]=3, 2, 32)", gpus.find("H100"))
    assert (done.grid, done.block) == ((1, 1, 1), (8, 4, 1))
    assert done.arrays[0]["first"] == [6.0] * 4


def test_limits_of_numbers_need_no_header(tmp_path: Path) -> None:
    file = tmp_path / "limits.cu"
    file.write_text("__global__ void f(float *x, int *y) { x[0] = -FLT_MAX; y[0] = INT_MAX; }")
    done = run(file, "f<<<1, 1>>>(float[1], int[1])", gpus.find("H100"))
    assert [array["first"] for array in done.arrays] == [[-3.4028234663852886e38], [2147483647]]


def test_an_atomic_function_of_16_bits_touches_16_bits(tmp_path: Path) -> None:
    file = tmp_path / "sum.cu"
    code = "#include <cuda_fp16.h>\n"
    file.write_text(code + "__global__ void sum(__half *h) { atomicAdd(h, __float2half(1.0f)); }")
    # One element: a function that replaces 32 bits would pass the allocation's end.
    done = run(file, "sum<<<1, 8>>>(half[1]=0)", gpus.find("H100"))
    assert not done.faults
    assert done.arrays[0]["first"] == [8.0]


def test_a_tile_has_no_parent_and_constants_need_no_header(tmp_path: Path) -> None:
    file = tmp_path / "tiles.cu"
    file.write_text("""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void tiles(float *y) {
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
  cg::thread_block_tile<8> part = cg::tiled_partition<8>(warp);
  y[threadIdx.x] = part.shfl(threadIdx.x, 1) + (float)M_PI + fminf(INFINITY, warp.size());
}""")
    done = run(file, "tiles<<<1, 64>>>(float[64])", gpus.find("H100"))
    assert not done.faults
    assert done.arrays[0]["first"] == pytest.approx([1 + 3.14159265 + 32] * 4)


def test_jiterator_gives_several_results_though_the_function_returns_none(session: Session) -> None:
    """The function of PyTorch's test_multiple_outputs (test/test_jiterator.py), which ends without a `return`."""
    code = "template <typename T> T pair(T x, T y, T& total, T& rest) { total = x + y; rest = x - y; }"
    function = torch.cuda.jiterator._create_multi_output_jit_fn(code, num_outputs=2)
    x, y = torch.arange(3.0, device="cuda"), torch.full((3,), 10.0, device="cuda")
    assert [result.tolist() for result in function(x, y)] == [[10.0, 11.0, 12.0], [-10.0, -9.0, -8.0]]


def test_jiterator_takes_no_tensors_of_the_host(session: Session) -> None:
    """pytorch/pytorch#94443; TensorIterator.cpp refuses several devices first."""
    function = torch.cuda.jiterator._create_jit_fn("template <typename T> T both(T x, T y) { return x + y; }")
    host = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"^t == DeviceType::CUDA INTERNAL ASSERT FAILED"):
        function(host, host)
    with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:0 and cpu!$"):
        function(host.cuda(), host)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_jiterator_computes(session: Session, dtype: torch.dtype) -> None:
    code = "template <typename T> T f(T x, T y, T alpha) { return -x + alpha * y; }"
    function = torch.cuda.jiterator._create_jit_fn(code, alpha=1.0)
    x, y = torch.rand(3, 5, device="cuda").to(dtype), torch.rand(5, device="cuda").to(dtype)
    wide = torch.float32 if dtype is torch.float16 else dtype  # in which it computes
    torch.testing.assert_close(function(x, y, alpha=3.0), (-x.to(wide) + 3.0 * y.to(wide)).to(dtype))


def test_a_kernel_of_a_file_is_run_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "saxpy.cu"
    file.write_text(SAXPY)
    good = run(file, "saxpy<<<4, 256>>>(float[1024]=2, float[1024]=1, 2.5f, 1024)", gpus.find("H100"))
    assert not good.faults
    assert good.arrays[1]["first"] == [6.0] * 4
    assert good.time_ns is not None
    wrong = run(file, "saxpy<<<4, 256>>>(float[1000]=2, float[1024]=1, 2.5f, 1024)", gpus.find("H100"))
    assert [(fault["kind"], fault["line"], fault["argument"]) for fault in wrong.faults] == [("out-of-bounds", 4, "x")]


def test_what_a_loop_uses_is_read_where_the_program_reads_it(tmp_path: Path) -> None:
    """https://github.com/flagos-ai/FlagGems/issues/5230: the store is guarded, the load is not."""
    file = tmp_path / "bucketize.cu"
    file.write_text("""__global__ void bucketize(const float *x, const float *edges, int *out, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
  int at = 0;
  for (int j = 0; j < m; j++) at += edges[j] < v;
  if (i < n) out[i] = at;
}
""")
    outcome = run(file, "bucketize<<<1, 64>>>(float[5], float[7], int[5], 5, 7)", gpus.find("H100"))
    assert [(fault["kind"], fault["line"]) for fault in outcome.faults] == [("out-of-bounds", 3)]


def test_the_command_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "saxpy.cu"
    file.write_text(SAXPY)
    launch = "saxpy<<<(4), (256)>>>(float[1024], float[1024]=empty, 2.5f, 1024)"
    command = [sys.executable, "-m", "windtunnel", "kernel", str(file), "--launch", launch, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert conforms("kernel", json.loads(done.stdout))
    assert {fault["kind"] for fault in json.loads(done.stdout)["faults"]} == {"uninitialized-read"}


def test_a_graph_computes_a_kernel_in_each_replay(session: Session) -> None:
    code = "__global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }"
    kernel = torch.cuda._compile_kernel(code, "twice")
    x, y = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(block=(8, 1, 1), args=[x, y])
        z = y + 1
    x.fill_(5.0)
    graph.replay()
    assert y.tolist() == [10.0] * 8
    assert z.tolist() == [11.0] * 8


def test_launches_on_two_streams_that_share_memory_are_a_race(session: Session) -> None:
    kernel = torch.cuda._compile_kernel("__global__ void fill(float *x, int v) { x[threadIdx.x] = v; }", "fill")
    x, side = torch.zeros(32, device="cuda"), torch.cuda.Stream()
    kernel(block=(32, 1, 1), args=[x, 1], stream=side)
    kernel(block=(32, 1, 1), args=[x, 2])
    assert "unsynchronized-access" in {finding.code for finding in session.findings()}


def test_a_failed_assertion_surfaces_at_the_next_wait(session: Session) -> None:
    code = "#include <cassert>\n__global__ void check(int n) { assert(n < 0); }"
    kernel = torch.cuda._compile_kernel(code, "check")
    kernel(block=(2, 1, 1), args=[1])
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.synchronize()
    assert "device-assert" in {finding.code for finding in session.findings()}


PICK = r"""
extern "C" __global__ void pick(const float *x, const long long *at, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[at[i]];
}
extern "C" __global__ void above(const float *x, int *count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] >= 0) atomicAdd(count, 1);
}
extern "C" __global__ void insist(const float *x) {
  if (x[threadIdx.x] == 0) __trap();
}
"""


def launches(no_data: bool) -> tuple[list[tuple[int, ...]], int, list[str]]:
    """When each kernel ran, the peak of memory, and the findings."""
    code = "template <typename T> T f(T x, T y) { return x > y ? x : y + 1; }"
    with emulate("H100", no_data=no_data) as session:
        saxpy = torch.cuda._compile_kernel(SAXPY, "saxpy")
        x, y = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
        for _ in range(3):
            saxpy(grid=(4096, 1, 1), block=(256, 1, 1), args=[x, y, 2.0, 1 << 20])
        z = torch.cuda.jiterator._create_jit_fn(code)(x, y)
        torch.cuda.synchronize()
        rows = [tuple(row[4:7]) for row in session.trace.rows]
        peak = torch.cuda.max_memory_allocated()
        saxpy(grid=(4097, 1, 1), block=(256, 1, 1), args=[x, z, 2.0, 1 << 20])
        return rows, peak, [finding.code for finding in session.findings() if finding.severity != "info"]


def test_without_data_kernels_take_their_time_and_memory() -> None:
    known, unknown = launches(False), launches(True)
    assert unknown == known
    assert unknown[2] == ["cuda-out-of-bounds"] * len(known[2]) != []


def test_without_data_what_values_decide_is_listed() -> None:
    with emulate("H100", no_data=True) as session:
        pick, above, insist = (torch.cuda._compile_kernel(PICK, name) for name in ("pick", "above", "insist"))
        x, y, n = torch.rand(512, device="cuda"), torch.empty(512, device="cuda"), 512
        count = torch.zeros(1, device="cuda", dtype=torch.int32)
        pick(grid=(2, 1, 1), block=(256, 1, 1), args=[x, torch.arange(512, device="cuda"), y, n])
        above(grid=(2, 1, 1), block=(256, 1, 1), args=[x, count, n])
        with pytest.raises(UnsupportedError, match=r"'insist' needs values to run on \(.*:\d+ asks for one\)"):
            insist(block=(32, 1, 1), args=[x])
        found = [finding.message for finding in session.findings() if "CUDA kernel" in finding.message]
        assert [message.split(" asks")[0].split()[-1] for message in found] == ["pick", "above", "insist"]
        lines = [int(message.split(":")[-1].split()[0]) for message in found]
        assert [line - lines[0] for line in lines] == [0, 4, 7]


COLLATZ = r"""
extern "C" __global__ void collatz(const int *x, int *steps) {
  int n = x[threadIdx.x], count = 0;
  while (n > 1) { n = n % 2 ? 3 * n + 1 : n / 2; count++; }
  steps[threadIdx.x] = count;
}
"""


def test_without_data_what_values_decide_is_counted_in_the_last_run_with_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_EXTENSIONS_DIR", str(tmp_path / "cache"))

    def collatz(most: int, threads: int = 64, no_data: bool = False) -> tuple[int, list[str]]:
        with emulate("A100" if no_data else "H100", no_data=no_data) as session:
            kernel = torch.cuda._compile_kernel(COLLATZ, "collatz")
            x = (torch.rand(threads, device="cuda") * 0 + most).int()
            kernel(block=(threads, 1, 1), args=[x, torch.empty_like(x)])
            torch.cuda.synchronize()
            counts = [dict(one.detail)["issued.integer"] for one in session.trace.signatures if "collatz" in one.name]
            return int(counts[0]), [one.message for one in session.findings() if "CUDA kernel" in one.message]

    assert collatz(27, no_data=True)[1][0].startswith("assumed: the values that the CUDA kernel collatz asks for at")
    few, _ = collatz(4)
    many, _ = collatz(27)
    assert many > 20 * few
    said = ["counted: the CUDA kernel collatz, whose work values decide, did what it did in the last run with data"]
    assert collatz(27, no_data=True) == (many, said)
    assert collatz(27, 32, no_data=True)[0] < few  # another shape is not known


def test_a_graph_keeps_the_memory_of_results_that_died(session: Session) -> None:
    code = 'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    kernel = torch.cuda._compile_kernel(code, "twice")

    def twice(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel(block=(64, 1, 1), args=[x, y])
        return y

    x, result = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    twice(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(twice(twice(x)))
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert result.tolist() == [12.0] * 64
    assert not [finding for finding in session.findings() if finding.severity == "error"]


def test_a_replay_computes_where_memory_of_the_pool_was_used_by_turns(session: Session) -> None:
    code = 'extern "C" __global__ void first(const float *x, float *y) { y[threadIdx.x] = x[64 * threadIdx.x] + 1; }'
    kernel = torch.cuda._compile_kernel(code, "first")

    def first(x: torch.Tensor) -> torch.Tensor:
        large = x * 2  # dies in the capture, and a smaller result takes its memory
        y = torch.empty(64, device="cuda")
        kernel(block=(64, 1, 1), args=[large, y])
        del large
        return y * 3

    x = torch.ones(64 * 64, device="cuda")
    first(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = first(x)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert result.tolist() == [21.0] * 64
    assert not [finding for finding in session.findings() if finding.severity == "error"]


def test_a_kernel_on_another_stream_is_not_in_the_graph(session: Session) -> None:
    code = 'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    kernel = torch.cuda._compile_kernel(code, "twice")
    x, y, z = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(block=(64, 1, 1), args=[x, y], stream=torch.cuda.default_stream())
        z.copy_(y)
    torch.cuda.synchronize()
    assert (y[0].item(), z[0].item()) == (2.0, 0.0)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert (y[0].item(), z[0].item()) == (2.0, 2.0)


GRID = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void total(const float *x, float *parts, float *y, int n) {
  cg::grid_group grid = cg::this_grid();
  float sum = 0;
  for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += x[i];
  parts[grid.thread_rank()] = sum;
  grid.sync();
  if (grid.thread_rank() == 0) { for (int i = 0; i < grid.size(); i++) y[0] += parts[i]; }
}
"""


def test_a_kernel_waits_for_its_whole_grid(tmp_path: Path) -> None:
    file = tmp_path / "total.cu"
    file.write_text(GRID)
    done = run(file, "total<<<8, 32>>>(float[1000], float[256]=empty, float[1]=0, 1000)", gpus.find("H100"))
    alone = run(file, "total<<<1, 256>>>(float[1000], float[256]=empty, float[1]=0, 1000)", gpus.find("H100"))
    assert not done.faults
    assert done.arrays[2]["first"] == alone.arrays[2]["first"]
    assert done.counters["grid_barriers"] == 1
    large = run(file, "total<<<10000, 32>>>(float[1000], float[320000]=empty, float[1]=0, 1000)", gpus.find("H100"))
    assert large.refused.startswith("cudaErrorCooperativeLaunchTooLarge")


AGGREGATED = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void filtered(const int *x, int *y, int *count, int *halves, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) {
    auto g = cg::coalesced_threads();
    int at;
    if (g.thread_rank() == 0) at = atomicAdd(count, g.size());
    y[g.shfl(at, 0) + g.thread_rank()] = x[i];
    cg::thread_group half = cg::tiled_partition(cg::this_thread_block(), 16);
    if (half.thread_rank() == 0) atomicAdd(halves, half.size());
  }
}
"""


def test_what_one_lane_has_set_the_others_take_from_it(tmp_path: Path) -> None:
    # https://developer.nvidia.com/blog/cuda-pro-tip-optimized-filtering-warp-aggregated-atomics
    file = tmp_path / "filtered.cu"
    file.write_text(AGGREGATED)
    launch = "filtered<<<4, 256>>>(int[1024]=1, int[1024]=0, int[1]=0, int[1]=0, 1000)"
    done = run(file, launch, gpus.find("H100"))
    assert not done.faults
    assert [done.arrays[at]["first"][0] for at in (1, 2, 3)] == [1.0, 1000.0, 1008.0]


def test_lanes_with_a_label_are_a_group(session: Session) -> None:
    code = """#include <cooperative_groups.h>
extern "C" __global__ void places(const int *x, int *counts, int *place, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, first = 0;
  if (i >= n) return;
  auto same = cooperative_groups::labeled_partition(cooperative_groups::coalesced_threads(), x[i]);
  if (same.thread_rank() == 0) first = atomicAdd(counts + x[i], same.size());
  place[i] = same.shfl(first, 0) + same.thread_rank();
}"""
    x = torch.randint(5, (1000,), dtype=torch.int32)
    counts, place = torch.zeros(5, dtype=torch.int32, device="cuda"), torch.zeros_like(x, device="cuda")
    kernel = torch.cuda._compile_kernel(code, "places")
    kernel(grid=(8, 1, 1), block=(128, 1, 1), args=[x.cuda(), counts, place, 1000])
    assert torch.equal(counts.cpu(), x.bincount(minlength=5).int())
    for label in range(5):
        assert torch.equal(place.cpu()[x == label].sort().values, torch.arange(int((x == label).sum())).int())


def test_a_switch_of_many_cases_is_made_of_branches(session: Session) -> None:
    # clang would make it a table of addresses; NVIDIA's samples (shfl_scan, reduction) choose their kernels so
    operations = "+-*^|&+-"
    cases = "".join(f"case {i}: y[i] = z[{i}] {op} x[i]; atomicAdd(n, {i}); break;" for i, op in enumerate(operations))
    arguments = "const int *x, const int *z, int *y, int *n"
    code = f'extern "C" __global__ void chosen({arguments}) {{ int i = threadIdx.x; switch (x[i]) {{ {cases} }} }}'
    x = torch.tensor([7, 6, 5, 4, 3, 2, 1, 0, 8, -1], dtype=torch.int32, device="cuda")
    z = torch.arange(10, dtype=torch.int32, device="cuda") * 3
    y, n = torch.zeros_like(x), torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.cuda._compile_kernel(code, "chosen")(block=(10, 1, 1), args=[x, z, y, n])
    assert n.item() == sum(range(8))
    assert y.tolist() == [eval(f"{3 * i} {op} {i}") for i, op in reversed([*enumerate(operations)])] + [0, 0]


def test_memory_has_no_type(session: Session) -> None:
    code = 'extern "C" __global__ void same(float *x, int *bits) { x[0] = 1; bits[0] = 0x40000000; x[1] = x[0]; }'
    kernel = torch.cuda._compile_kernel(code, "same")
    x = torch.zeros(2, device="cuda")
    kernel(block=(1, 1, 1), args=[x, x])
    assert x.tolist() == [2.0, 2.0]


ORDERS = """__global__ void slots(int *o, int *n) {
  if (threadIdx.x == 0) {
    int at = atomicAdd(n, 1);
    o[at] = blockIdx.x;
  }
}
__global__ void sums(const float *x, float *s) { atomicAdd(s, x[blockIdx.x * blockDim.x + threadIdx.x]); }
"""


def test_a_result_that_depends_on_the_order_is_found(tmp_path: Path) -> None:
    file = tmp_path / "orders.cu"
    file.write_text(ORDERS)
    found = run(file, "slots<<<16, 32>>>(int[16], int[1]=0)", gpus.find("H100"), schedules=4)
    ((kind, line),) = [(fault["kind"], fault["line"]) for fault in found.faults]
    assert (kind, line) == ("order-dependent", 3)
    assert not run(file, "sums<<<16, 32>>>(float[512], float[1]=0)", gpus.find("H100"), schedules=4).faults  # rounding


UNWRITTEN = """__device__ float helper(float a) { float q; q += a; return q; }
__global__ void faulty(const float *x, float *o, int n) {
  float sum;
  for (int i = 0; i < n; i++) sum += x[i];
  o[threadIdx.x] = sum;
}
__global__ void right(const float *x, float *o, int n) {
  float v;
  if (threadIdx.x == 0) v = x[0];
  o[threadIdx.x] = __shfl_sync(~0u, v, 0);
}
"""


def test_a_variable_that_is_used_before_it_is_written_is_found(tmp_path: Path) -> None:
    file = tmp_path / "sum.cu"
    file.write_text(UNWRITTEN)
    found = run(file, "faulty<<<1, 32>>>(float[32], float[32], 32)", gpus.find("H100"))
    assert [(fault["kind"], fault["line"]) for fault in found.faults] == [("uninitialized-read", 4)]
    assert not run(file, "right<<<1, 32>>>(float[32], float[32], 32)", gpus.find("H100")).faults


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("__global__ void k(cudaTextureObject_t t, float *o) { *o = tex2D<float>(t, 0.f, 1.f); }", "textures and surf"),
        ("__global__ void c() {}\n__global__ void k(float *o) { c<<<1, 1>>>(); }", "dynamic parallelism"),
        ("#include <cuda/atomic>\n__global__ void k(float *o) {}", "libcu"),
    ],
    ids=["texture", "kernel", "libcu++"],
)
def test_what_is_not_emulated_is_refused_by_name(tmp_path: Path, code: str, said: str) -> None:
    file = tmp_path / "refused.cu"
    file.write_text(code)
    with pytest.raises(CompileError, match=said):
        run(file, "k<<<1, 32>>>(float[32])", gpus.find("H100"))


UNSET = r"""
struct Pair { float value; char kind; int extra; };
__device__ void split(float x, float *whole, float *rest) { if (x > 0) { *whole = floorf(x); *rest = x - *whole; } }
__global__ void sign(const float *x, float *y, Pair *pairs, int n) {
  int i = threadIdx.x;
  float whole, rest;  // both
  split(x[i], &whole, &rest);
  y[i] = x[i] > 0 ? whole + rest : x[i];
  Pair pair;  // carried along
  pair.value = y[i];
  pair.kind = 1;
  pairs[i] = pair;
}
__global__ void bad(const float *x, float *y, Pair *pairs, int n) {
  int i = threadIdx.x;
  float whole, rest;
  split(x[i], &whole, &rest);
  float4 four;
  four.x = whole, four.y = four.z = 0;
  y[i] = n > 32 ? four.w : four.x + four.y;
}
__global__ void ends(const float *x, float *y, Pair *pairs, int n) {
  int at;
  if (n < 0) at = 0;
  y[at & (n > 0 ? -1 : 0)] = 1.f;
}
"""


@pytest.mark.parametrize(
    ("kernel", "n", "found"),
    [("sign", 32, []), ("bad", 32, ["whole"]), ("bad", 33, ["four"]), ("ends", 1, ["at"])],
)
def test_a_result_that_depends_on_an_unset_variable_names_it(
    tmp_path: Path, kernel: str, n: int, found: list[str]
) -> None:
    file = tmp_path / "unset.cu"
    file.write_text(UNSET)
    done = run(file, f"{kernel}<<<1, 32>>>(float[32], float[32]=0, int[96]=0, {n})", gpus.find("H100"))
    assert [str(fault["message"]).split(" variable ")[1].split(",")[0].split(" ")[0] for fault in done.faults] == found
    assert {fault["kind"] for fault in done.faults} <= {"uninitialized-read"}


HOST = r"""
#include <cublas_v2.h>
#include <cuda_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] = 2; }
float host(int n) {  // of headers that nvcc includes by itself, and of a library
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) abort();
  cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
  int numbers[4];
  memset(numbers, 0, sizeof numbers);
  return expf((float)n) + numbers[0];
}
"""


def test_host_code_beside_a_kernel_may_call_libraries(tmp_path: Path) -> None:
    file = tmp_path / "host.cu"
    file.write_text(HOST)
    done = run(file, "twice<<<1, 4>>>(float[4]=0)", gpus.find("H100"))
    assert done.arrays[0]["first"] == [2.0] * 4
    file.write_text(HOST.replace("x[threadIdx.x] = 2;", "x[threadIdx.x] = cublasCreate(x) == 0;"))
    with pytest.raises(CompileError, match="cublasCreate"):
        run(file, "twice<<<1, 4>>>(float[4]=0)", gpus.find("H100"))


def test_shuffles_of_a_part_of_a_warp_and_of_all(tmp_path: Path) -> None:
    # https://github.com/gunrock/gunrock/issues/324: it hung with CUDA 9.1
    file = tmp_path / "shuffles.cu"
    file.write_text("""__global__ void shuffles(int *y) {
  int lane = threadIdx.x, received = lane + 32;
  if ((lane & 15) == 0) received = __shfl_xor_sync(0x00010001u, lane + received, 16);
  y[lane] = __shfl_up_sync(0xffffffffu, received, 8);
}""")
    done = run(file, "shuffles<<<1, 32>>>(int[32])", gpus.find("H100"))
    received = [lane + 32 for lane in range(32)]
    received[0], received[16] = 16 + 48, 0 + 32
    assert not done.faults
    assert done.arrays[0]["first"] == [received[lane - 8 if lane >= 8 else lane] for lane in range(4)]


def test_rows_of_a_gradient_that_a_kernel_leaves_out_are_found_where_they_are_summed(session: Session) -> None:
    # https://github.com/pytorch/FBGEMM/pull/5754: longer segments than were packed
    unpack = torch.cuda._compile_kernel(
        r"""extern "C" __global__ void unpack(const float *packed, float *rows, const int *lengths, int most) {
          int first = 0, length = lengths[blockIdx.x];
          for (int i = 0; i < blockIdx.x; i++) first += lengths[i];
          for (int cell = 0; cell < min(length, most); cell++)
            rows[(first + cell) * 8 + threadIdx.x] = packed[(blockIdx.x * most + cell) * 8 + threadIdx.x];
        }""",
        "unpack",
    )
    for lengths, found in (([4, 3], []), ([4, 6], ["cuda-uninitialized"])):
        packed, counts = torch.ones(2, 4, 8, device="cuda"), torch.tensor(lengths, dtype=torch.int32, device="cuda")
        rows = torch.empty(sum(lengths), 8, device="cuda")
        unpack(grid=(2, 1, 1), block=(8, 1, 1), args=[packed, rows, counts, 4])
        rows.norm()
        assert [finding.code for finding in session.findings() if finding.code == "cuda-uninitialized"] == found


def test_a_launch_on_one_gpu_does_not_reach_another_ones_memory() -> None:
    code = r'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    for copied in (False, True):
        with emulate("2xA100") as session:
            kernel = torch.cuda._compile_kernel(code, "twice")
            x = torch.ones(64, device="cuda:1")
            y = torch.empty_like(x)
            if copied:  # PyTorch's copies between GPUs let each use the other's memory
                x.to("cuda:0")
            kernel(block=(64, 1, 1), args=[x, y])
            if copied:
                assert y.tolist() == [2.0] * 64
            else:
                with pytest.raises(torch.AcceleratorError, match="an illegal memory access was encountered"):
                    torch.cuda.synchronize(0)
            found = [one.message for one in session.findings() if one.code == "cuda-out-of-bounds"]
            assert [("runs on cuda:0 and uses memory of cuda:1" in message) for message in found] == [True] * (
                not copied
            )


TILES = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void tiles(const float *x, float *sums, float *scans, int *votes) {
  __shared__ cg::block_tile_memory<BLOCK> memory;
  auto tile = cg::tiled_partition<TILE>(cg::this_thread_block(memory));
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = cg::reduce(tile, x[i], cg::plus<float>()), most = cg::reduce(tile, x[i], cg::greater<float>());
  if (tile.thread_rank() == 0) sums[i / TILE] = sum + 1000 * most;
  scans[i] = cg::exclusive_scan(tile, x[i], cg::plus<float>());
  scans[i + gridDim.x * blockDim.x] = cg::inclusive_scan(tile, x[i], cg::plus<float>());
  votes[i] = tile.any(x[i] > 8.f) + 2 * tile.all(x[i] < 9.f) + 4 * (int)tile.shfl(x[i], TILE - 3);
}
"""


@pytest.mark.parametrize(("tile", "block"), [(16, 512), (64, 512), (256, 512), (64, 1024)])
def test_tiles_of_several_warps_tell_each_other_values(session: Session, tile: int, block: int) -> None:
    kernel = torch.cuda._compile_kernel(TILES.replace("TILE", str(tile)).replace("BLOCK", str(block)), "tiles")
    x = torch.randint(0, 10, (1024,), generator=torch.Generator().manual_seed(1)).float().cuda()
    sums, scans, votes = (torch.zeros(n, device="cuda") for n in (1024 // tile, 2048, 1024))
    votes = votes.int()
    kernel(grid=(1024 // block, 1, 1), block=(block, 1, 1), args=[x, sums, scans, votes])
    rows = x.view(-1, tile)
    assert torch.equal(sums, rows.sum(1) + 1000 * rows.amax(1))
    assert torch.equal(scans[1024:].view(-1, tile), rows.cumsum(1))
    assert torch.equal(scans[:1024].view(-1, tile), rows.cumsum(1) - rows)
    expected = (rows > 8).any(1).int() + 2 * (rows < 9).all(1).int() + 4 * rows[:, tile - 3].int()
    assert torch.equal(votes.view(-1, tile), expected[:, None].expand(-1, tile).int())
    assert not [found for found in session.findings() if found.code.startswith("cuda-")]
