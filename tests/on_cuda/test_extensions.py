"""Extensions with CUDA sources, unmodified, beside PyTorch's own values."""

from __future__ import annotations

import ctypes
import importlib
import time

import pytest
import torch
import torch.nn.functional as F

from windtunnel import emulate
from windtunnel.compiler import stubs
from windtunnel.errors import UnsupportedError
from windtunnel.session import Session

pytestmark = pytest.mark.long
SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cooperative_groups.h>
template <typename T> __global__ void row_sum_kernel(const T *__restrict__ x, T *__restrict__ out, int64_t cols) {
  extern __shared__ float s[];
  float v = 0;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) v += static_cast<float>(x[blockIdx.x * cols + i]);
  s[threadIdx.x] = v;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<T>(s[0]);
}
torch::Tensor row_sum(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = torch::empty({x.size(0)}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "row_sum", [&] {
    row_sum_kernel<scalar_t><<<x.size(0), 128, 128 * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.size(1)); });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
torch::Tensor on_default(torch::Tensor x) {
  auto out = torch::empty({x.size(0)}, x.options());
  row_sum_kernel<float><<<x.size(0), 128, 128 * sizeof(float)>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
  return out;
}
torch::Tensor too_many(torch::Tensor x) {
  row_sum_kernel<float><<<1, 2048>>>(x.data_ptr<float>(), x.data_ptr<float>(), 1);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
torch::Tensor unchecked(torch::Tensor x) {
  row_sum_kernel<float><<<1, 2048>>>(x.data_ptr<float>(), x.data_ptr<float>(), 1);
  return x;
}
torch::Tensor leaking(torch::Tensor x) {
  static void *kept = nullptr;
  if (!kept) cudaMalloc(&kept, 1024);
  void *scratch;
  cudaMalloc(&scratch, 4096);
  return x + 1;
}
__global__ void turn_kernel(const float *x, float *y, float *z, int n) {
  auto grid = cooperative_groups::this_grid();
  for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = 2 * x[i];
  grid.sync();
  for (int i = grid.thread_rank(); i < n; i += grid.size()) z[i] = y[n - 1 - i];
}
torch::Tensor turn(torch::Tensor x) {
  auto y = torch::empty_like(x), z = torch::empty_like(x);
  const float *a = x.data_ptr<float>();
  float *b = y.data_ptr<float>(), *c = z.data_ptr<float>();
  int n = x.numel();
  void *given[] = {&a, &b, &c, &n};
  auto stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaLaunchCooperativeKernel((void *)turn_kernel, n / 32, 32, given, 0, stream));
  return z;
}
torch::Tensor turn_without_leave(torch::Tensor x) {
  turn_kernel<<<2, 32>>>(x.data_ptr<float>(), x.data_ptr<float>(), x.data_ptr<float>(), x.numel());
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  return x;
}
torch::Tensor on_host(torch::Tensor x) { return x.to(at::kCPU).to(at::kCUDA); }
void silu(torch::Tensor &out, const torch::Tensor &in) { out.copy_(in * at::sigmoid(in)); }
TORCH_LIBRARY(windtunnel_tests, m) { m.def("silu(Tensor! out, Tensor x) -> ()"); m.impl("silu", torch::kCUDA, &silu); }
"""
FUNCTIONS = ["row_sum", "on_default", "too_many", "unchecked", "leaking", "on_host", "turn", "turn_without_leave"]
DECLARED = "\n".join(f"torch::Tensor {name}(torch::Tensor x);" for name in FUNCTIONS)


def built():
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    flags = {"extra_cflags": ["-O2 -DNOTHING"], "extra_cuda_cflags": ["-O3 -DTHREADS=256"], "extra_ldflags": [""]}
    return cpp_extension.load_inline("row_sums", DECLARED, SOURCE, functions=FUNCTIONS, **flags)


def test_an_extension_computes_and_refuses_as_on_a_gpu(session: Session) -> None:
    module = built()
    tolerances = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 5e-2, torch.bfloat16: 0.3}
    for dtype, tolerance in tolerances.items():
        x = torch.randn(30, 300, device="cuda").to(dtype)
        found = module.row_sum(x)
        assert found.device == x.device
        assert (found.double() - x.double().sum(1)).abs().max() < tolerance
    with pytest.raises(RuntimeError, match="x must be a CUDA tensor"):
        module.row_sum(torch.randn(3, 3))
    with pytest.raises(RuntimeError, match="CUDA error: invalid argument"):
        module.too_many(torch.zeros(4, device="cuda"))
    assert module.on_host(torch.ones(3, device="cuda")).device == torch.device("cuda", 0)


def test_blocks_of_a_cooperative_launch_wait_for_each_other(session: Session) -> None:
    module, x = built(), torch.randn(320, device="cuda")
    assert torch.equal(module.turn(x), 2 * x.flip(0))
    with pytest.raises(RuntimeError, match="too many blocks in cooperative launch"):
        module.turn(torch.zeros(32 * 5000, device="cuda"))
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        module.turn_without_leave(x)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_launch_on_the_default_stream_is_no_part_of_a_graph(session: Session) -> None:
    """https://github.com/huggingface/candle/pull/3596"""
    module, x = built(), torch.ones(4, 10, device="cuda")
    module.on_default(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = module.on_default(x)
    assert found.tolist() == [10.0] * 4
    x.fill_(2)
    graph.replay()
    assert found.tolist() == [10.0] * 4


def test_without_data_a_launch_takes_its_time_and_memory() -> None:
    found = []
    for no_data in (False, True):
        with emulate("H100", no_data=no_data) as running:
            module, x = built(), torch.ones(3000, 1000, device="cuda")
            for _ in range(3):
                out = module.row_sum(x)
            half, turned = module.row_sum(x.half()), module.turn(torch.ones(320, device="cuda"))
            assert (out.shape, out.device.type, half.dtype, turned.shape) == ((3000,), "cuda", torch.float16, (320,))
            torch.cuda.synchronize()
            rows = [tuple(row[4:7]) for row in running.trace.rows]
            found.append((rows, torch.cuda.max_memory_allocated(), [one.code for one in running.findings()]))
    assert found[0] == found[1]


def test_memory_of_results_is_given_back(session: Session) -> None:
    module, x = built(), torch.randn(64, 1000, device="cuda")
    allocated = set()
    for _ in range(4):
        y = module.row_sum(x)
        allocated.add(torch.cuda.memory_allocated())
    assert y.shape == (64,)
    assert len(allocated) <= 2


def test_an_operator_registered_in_cpp_runs_on_the_device(session: Session) -> None:
    built()
    x = torch.randn(5, device="cuda")
    out = torch.empty_like(x)
    torch.ops.windtunnel_tests.silu(out, x)
    torch.testing.assert_close(out, F.silu(x))


def test_gradients_go_through_a_function_of_the_programs_own(session: Session) -> None:
    module = built()

    class RowSum(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.shape = x.shape
            return module.row_sum(x)

        @staticmethod
        def backward(context, gradient):
            return gradient[:, None].expand(context.shape)

    x = torch.randn(6, 10, device="cuda", requires_grad=True)
    RowSum.apply(x * 2).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


def test_a_function_that_is_not_there_is_named(session: Session) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    code = "#include <torch/extension.h>\nextern void cufftSomething(); void f() { cufftSomething(); }"
    with pytest.raises(UnsupportedError, match="cufftSomething"):
        cpp_extension.load_inline("missing", "void f();", code, functions=["f"])


def test_an_error_that_nobody_reads_and_memory_that_nobody_frees_are_found() -> None:
    with emulate("H100") as session:
        module, x = built(), torch.zeros(4, device="cuda")
        with pytest.raises(RuntimeError, match="invalid argument"):
            module.too_many(x)
        for _ in range(5):
            module.leaking(x)
        module.unchecked(x)
    found = {finding.code: finding for finding in session.findings() if finding.code.startswith("cuda-")}
    assert set(found) == {"cuda-leak", "cuda-unchecked-launch"}
    assert "cudaMalloc was called" in found["cuda-leak"].message
    assert "row_sum_kernel" in found["cuda-unchecked-launch"].message
    assert "invalid argument" in found["cuda-unchecked-launch"].message


def test_the_runtime_of_a_toolkit_does_not_stand_before_ours(session: Session) -> None:
    toolkits = str(stubs.library("libcudart.so.99", ["cudaInTheToolkitAlone"]))
    library = ctypes.CDLL(toolkits, mode=ctypes.RTLD_GLOBAL)  # as cuda-python opens it for Numba
    assert library.cudaInTheToolkitAlone
    assert not hasattr(ctypes.CDLL(None), "cudaInTheToolkitAlone")


HOST_ROUNDING = r"""
#include <torch/extension.h>
#include <cuda_bf16.h>
template <typename T> void round_all(const T *x, torch::Tensor y) {
  for (int i = 0; i < y.numel(); i++) static_cast<__nv_bfloat16 *>(y.data_ptr())[i] = __nv_bfloat16(x[i]);
}
torch::Tensor rounded(torch::Tensor x) {
  auto y = torch::empty_like(x, x.options().dtype(torch::kBFloat16));
  if (x.dtype() == torch::kFloat64) round_all(x.data_ptr<double>(), y);
  else round_all(x.data_ptr<float>(), y);
  return y;
}
"""


def test_host_code_rounds_to_bfloat16_once(session: Session) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    extension = cpp_extension.load_inline(
        "rounds", "torch::Tensor rounded(torch::Tensor x);", HOST_ROUNDING, functions=["rounded"]
    )
    x = torch.cat([torch.randn(200) * torch.logspace(-44, 38, 200), torch.tensor([float("inf"), 3.4e38, 0.0])])
    assert torch.equal(extension.rounded(x), x.bfloat16())
    assert extension.rounded(torch.tensor([float("nan")])).isnan().all()
    tie, next_one = 1 + 2**-8, 1 + 2**-7
    near = torch.tensor([tie + 2**-40, tie - 2**-40, tie, -tie - 2**-40], dtype=torch.float64)
    assert extension.rounded(near).tolist() == [next_one, 1, 1, -next_one]


OWN_HELPERS = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#if !defined(__DRIVER_TYPES_H__) || !defined(__CUDA_RUNTIME_H__) || !defined(__VECTOR_TYPES_H__)
#error "helpers such as those of NVIDIA's samples leave out what they take for missing"
#endif
std::vector<int64_t> facts() {
  std::vector<int64_t> found;
  for (auto asked : {cudaDevAttrComputeMode, cudaDevAttrIntegrated, cudaDevAttrCanMapHostMemory,
                     cudaDevAttrConcurrentKernels}) {
    int value = -1;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, asked, 0));
    found.push_back(value);
  }
  C10_CUDA_CHECK(cudaSetDeviceFlags(cudaDeviceBlockingSync | cudaDeviceMapHost));
  static int64_t called = 0;
  auto call = [](cudaStream_t, cudaError_t status, void *data) { *(int64_t *)data += 1 + status; };
  C10_CUDA_CHECK(cudaStreamAddCallback(nullptr, call, &called, 0));
  C10_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  found.push_back(called);
  return found;
}
"""


def test_helpers_of_programs_find_the_runtime_by_its_guards(session: Session) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    declared = "std::vector<int64_t> facts();"
    extension = cpp_extension.load_inline("helpers", declared, OWN_HELPERS, functions=["facts"])
    assert extension.facts() == [0, 0, 1, 1, 1]  # the default mode of a card on a bus; one call


CLOCKS = r"""
#include <torch/extension.h>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <thread>
#include <sys/time.h>
__global__ void slow_here(float *x, int n) {
  for (int i = threadIdx.x; i < n; i += 256) x[i] = sinf(x[i]) + expf(x[i]);
}
typedef std::chrono::steady_clock Steady;
std::vector<double> seconds(torch::Tensor x) {
  timespec a, b;
  timeval c, d;
  auto day = std::chrono::system_clock::now();
  auto begin = Steady::now();
  clock_gettime(CLOCK_MONOTONIC, &a);
  gettimeofday(&c, nullptr);
  slow_here<<<1, 256>>>(x.data_ptr<float>(), x.numel());
  cudaDeviceSynchronize();
  gettimeofday(&d, nullptr);
  clock_gettime(CLOCK_MONOTONIC, &b);
  std::chrono::duration<double> steady = Steady::now() - begin, of_day = std::chrono::system_clock::now() - day;
  return {steady.count(), of_day.count(), b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) * 1e-9,
          d.tv_sec - c.tv_sec + (d.tv_usec - c.tv_usec) * 1e-6};
}
bool of_old_type(torch::Tensor x) { return x.type().is_cuda(); }
double now() { return std::chrono::duration<double>(Steady::now().time_since_epoch()).count(); }
int launched_by_a_thread(torch::Tensor x) {  // while this one has Python's lock
  cudaError_t found = cudaErrorUnknown;
  std::thread thread([&] { slow_here<<<1, 256>>>(x.data_ptr<float>(), 8); found = cudaDeviceSynchronize(); });
  thread.join();
  return found;
}
std::vector<double> timed_by_a_thread(torch::Tensor x) {  // one that Python does not know
  std::chrono::duration<double> steady{}, of_day{};
  float events = 0;
  std::thread thread([&] {
    cudaEvent_t one, other;
    auto begin = Steady::now();
    auto day = std::chrono::system_clock::now();
    cudaEventCreate(&one), cudaEventCreate(&other), cudaEventRecord(one);
    slow_here<<<1, 256>>>(x.data_ptr<float>(), x.numel());
    cudaEventRecord(other), cudaEventSynchronize(other), cudaEventElapsedTime(&events, one, other);
    steady = Steady::now() - begin, of_day = std::chrono::system_clock::now() - day;
  });
  thread.join();
  return {steady.count(), of_day.count(), events * 1e-3};
}
bool waited() {  // threads wait as long as they say, by whatever clock they reckon
  std::mutex m;
  std::condition_variable v;
  bool one = false, other = false;
  auto wait = [&] {
    std::unique_lock<std::mutex> lock(m);
    return v.wait_until(lock, Steady::now() + std::chrono::milliseconds(5)) == std::cv_status::timeout;
  };
  std::thread thread([&] { one = wait(); });
  thread.join();
  other = wait();
  return one && other;
}
"""


def test_host_code_reads_the_modelled_clock(session: Session) -> None:
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    declared = "std::vector<double> seconds(torch::Tensor x); double now(); bool waited(); "
    declared += "int launched_by_a_thread(torch::Tensor x); std::vector<double> timed_by_a_thread(torch::Tensor x);"
    declared += " bool of_old_type(torch::Tensor x);"
    names = ["seconds", "now", "waited", "launched_by_a_thread", "timed_by_a_thread", "of_old_type"]
    extension = cpp_extension.load_inline("clocks", declared, CLOCKS, functions=names)
    x = torch.randn(1 << 16, device="cuda")
    assert extension.of_old_type(x)
    assert not extension.of_old_type(x.cpu())
    extension.seconds(x)
    started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    started.record()
    begin = time.monotonic()
    found = extension.seconds(x)
    ended.record()
    ended.synchronize()
    between = time.monotonic() - begin
    kernel = started.elapsed_time(ended) / 1e3
    assert all(0.5 * kernel < one < between for one in found), (kernel, found, between)
    before = time.monotonic()
    assert before < extension.now() < time.monotonic()
    assert extension.waited()
    assert extension.launched_by_a_thread(x) == 0
    before = time.monotonic()
    *by_thread, events = extension.timed_by_a_thread(x)
    after = time.monotonic()
    assert 0 < events < after - before
    assert all(events < one < events + 0.05 for one in by_thread), (kernel, events, by_thread)
