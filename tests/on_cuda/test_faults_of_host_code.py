"""Host code that was reported in public, written anew with its fault and without: the finding names the call's line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="found on Linux alone")]
PROGRAM = r"""#include <cstdio>
#include <cstdlib>
#include <cstring>
const int n = 1 << 18;
__constant__ float scale[1024];
__global__ void fill(float *x, float v) { x[blockIdx.x * 256 + threadIdx.x] = v; }
__global__ void twice(const float *x, float *y) { int i = blockIdx.x * 256 + threadIdx.x; y[i] = 2 * x[i]; }
__global__ void scaled(float *x) { x[blockIdx.x * 256 + threadIdx.x] = scale[threadIdx.x]; }
__global__ void sum(const float *x, float *y) {
  float v = 0;
  for (int i = threadIdx.x; i < n; i += 256) v += x[i];  // sum
  atomicAdd(y, v);
}
float host[n];
float *device() { float *x; cudaMalloc(&x, 4 * n); return x; }
float *locked() { float *x; cudaMallocHost(&x, 4 * n); memset(x, 0, 4 * n); return x; }
cudaStream_t stream() { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }
// https://github.com/votca/xtp/issues/391: the result is read before the stream has copied it.
void stale(bool right) {
  float *x = device(), *h = locked();
  cudaStream_t s = stream();
  fill<<<n / 256, 256, 0, s>>>(x, 3);
  cudaMemcpyAsync(h, x, 4 * n, cudaMemcpyDeviceToHost, s);
  if (right) cudaStreamSynchronize(s);
  printf("%g\n", h[1]);  // stale
}
// https://github.com/cupy/cupy/pull/5155: the source is written again while it is copied.
void early(bool right) {
  float *x = device(), *h = locked();
  cudaStream_t s = stream();
  cudaEvent_t copied;
  cudaEventCreate(&copied);
  cudaMemcpyAsync(x, h, 4 * n, cudaMemcpyHostToDevice, s);
  cudaEventRecord(copied, s);
  if (right) cudaEventSynchronize(copied);
  memset(h, 1, 4 * n);  // early
  cudaStreamSynchronize(s);
}
// The same of memory that the program has and locks; a callback of the stream says that it is there.
void registered(bool right) {
  float *x = device(), *h = (float *)aligned_alloc(4096, 4 * n);
  static volatile bool there;
  cudaHostRegister(h, 4 * n, 0);
  cudaStream_t s = stream();
  fill<<<n / 256, 256, 0, s>>>(x, 5);
  cudaMemcpyAsync(h, x, 4 * n, cudaMemcpyDeviceToHost, s);
  auto tell = [](void *) { there = true; };
  if (right) cudaLaunchHostFunc(s, tell, nullptr);
  while (right && !there);
  printf("%g\n", h[2000]);  // registered
  cudaDeviceSynchronize();
  cudaHostUnregister(h);
}
// A kernel writes page-locked memory itself.
void mapped(bool right) {
  float *x = device(), *h = locked();
  cudaMemset(x, 0, 4 * n);
  twice<<<n / 256, 256>>>(x, h);
  if (right) cudaDeviceSynchronize();
  printf("%g\n", h[1]);  // mapped
}
// Constant memory is set again while a kernel of another stream reads it.
void constant(bool right) {
  float *x = device(), *y = device(), *h = locked();
  cudaStream_t s = stream(), t = stream();
  cudaEvent_t read;
  cudaEventCreate(&read);
  scaled<<<n / 256, 256, 0, s>>>(x);
  cudaEventRecord(read, s);
  if (right) cudaStreamWaitEvent(t, read, 0);
  cudaMemcpyToSymbolAsync(scale, h, 4096, 0, cudaMemcpyHostToDevice, t);  // constant
  scaled<<<n / 256, 256, 0, t>>>(y);
}
// https://github.com/alpaka-group/alpaka/issues/850: a copy of the default stream does not wait for this one.
void unwaited(bool right) {
  float *x = device();
  cudaStream_t s = stream();
  fill<<<n / 256, 256, 0, s>>>(x, 3);
  if (right) cudaStreamSynchronize(s);
  cudaMemcpy(host, x, 4 * n, cudaMemcpyDeviceToHost);  // unwaited
}
// https://github.com/Rust-GPU/rust-cuda/issues/15: from pageable memory cudaMemcpy returns before the bytes arrive.
void pageable(bool right) {
  float *x = device(), *y = device();
  cudaStream_t s = stream();
  cudaMemcpy(x, host, 4 * n, cudaMemcpyHostToDevice);
  if (right) cudaStreamSynchronize(0);
  twice<<<n / 256, 256, 0, s>>>(x, y);  // pageable
}
// https://github.com/NVIDIA/cudf/issues/8873: a kernel reads what lies behind the values.
void unwritten(bool right) {
  float *x = device(), *y = device();
  cudaMemset(y, 0, 4);
  cudaMemset(x, 0, right ? 4 * n : 4 * n - 64);
  sum<<<1, 256>>>(x, y);
  cudaMemcpy(host, y, 4, cudaMemcpyDeviceToHost);
}
// The grid is a block too small, and the whole result is taken.
void small(bool right) {
  float *x = device();
  fill<<<n / 256 - !right, 256>>>(x, 3);
  cudaMemcpy(host, x, 4 * n, cudaMemcpyDeviceToHost);  // small
}
// CUDA C++ Programming Guide, "Stream and Event Behavior": another device's stream is refused.
void other(bool right) {
  cudaStream_t s = stream();
  cudaSetDevice(1);
  float *x = device();
  if (right) s = stream();
  fill<<<n / 256, 256, 0, s>>>(x, 3);  // other
  cudaEvent_t event;
  cudaEventCreate(&event);
  cudaError_t error = cudaEventRecord(event, s);
  if ((error == cudaSuccess) != right) exit(3);
}
// Elements in place of bytes, the wrong way round; memory that is given back twice.
void beyond(bool right) {
  float *x = device();
  cudaMemset(x, 0, 4 * n);
  cudaMemcpy(host, x, 4 * (n + !right), cudaMemcpyDeviceToHost);  // beyond
  cudaMemcpy(x, host, 4 * n, right ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);  // direction
  float *y = device();
  if (!right) cudaFree(y);
  cudaFree(y);  // twice
}
int main(int count, char **words) {
  void (*parts[])(bool) = {
    stale, early, registered, mapped, constant, unwaited, pageable, unwritten, small, other, beyond};
  for (auto part : parts) {
    part(count > 1);
    cudaDeviceSynchronize();
  }
}
"""
FAULTS = {
    "stale": "stale-read",
    "early": "early-overwrite",
    "registered": "stale-read",
    "mapped": "cuda-early-use",
    "constant": "unsynchronized-access",
    "unwaited": "unsynchronized-access",
    "pageable": "unsynchronized-access",
    "sum": "cuda-uninitialized",
    "small": "cuda-uninitialized",
    "other": "cuda-unchecked-launch",
    "beyond": "cuda-unchecked-launch",
    "direction": "cuda-unchecked-launch",
    "twice": "cuda-unchecked-launch",
}
"""The findings, by the word at the end of the line."""


@pytest.mark.parametrize("right", [False, True], ids=["faulty", "right"])
def test_faults_of_host_code_are_found_at_their_lines(tmp_path: Path, right: bool) -> None:
    (tmp_path / "program.cu").write_text(PROGRAM)
    command = ["-m", "windtunnel", "run", "--gpus", "2xH100", "--report", "report.json", "program.cu"]
    done = subprocess.run(
        [sys.executable, *command, *["right"] * right], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]
    grave = {(one["code"], one["line"]): one["severity"] for one in findings if one["severity"] in ("error", "warning")}
    found = {key for key, severity in grave.items() if severity == "error" or key[0] == "unsynchronized-access"}
    lines = {
        line.rpartition("// ")[2]: number for number, line in enumerate(PROGRAM.split("\n"), 1) if ";  // " in line
    }
    assert found == (set() if right else {(code, lines[mark]) for mark, code in FAULTS.items()})
    assert right or grave["unsynchronized-access", lines["pageable"]] == "warning"  # mostly, the bytes arrive in time
