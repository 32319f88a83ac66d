"""Managed memory that host code of an extension uses too early, and in time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.utils.cpp_extension

from windtunnel import emulate

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="found on Linux alone")]
SOURCE = r"""
#include <torch/extension.h>
__global__ void count_kernel(const float *x, int n, int *found) {
  __shared__ int own;
  if (threadIdx.x == 0) own = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) if (x[i] > 0) atomicAdd(&own, 1);
  __syncthreads();
  if (threadIdx.x == 0) *found = own;
}
__global__ void add(int *found) { atomicAdd(found, 1); }
__global__ void add_for_all(int *found) {
  atomicAdd_system(found, 1);
  atomicInc_system((unsigned *)found, 1000);
}
int64_t beside(bool of_system) {
  static int *sum = nullptr;
  if (!sum) cudaMallocManaged(&sum, sizeof(int));
  *sum = 0;
  if (of_system) add_for_all<<<2, 32>>>(sum);
  else add<<<2, 32>>>(sum);
  __sync_fetch_and_add(sum, 1);
  cudaDeviceSynchronize();
  return *sum;
}
int64_t positive(torch::Tensor x, bool waits, bool by_event, bool asks) {
  static int *found = nullptr;
  if (!found) cudaMallocManaged(&found, sizeof(int));
  count_kernel<<<1, 256>>>(x.data_ptr<float>(), x.numel(), found);
  if (by_event) {
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaEventRecord(event);
    cudaEventSynchronize(event);
  }
  if (waits) cudaDeviceSynchronize();
  cudaPointerAttributes facts;
  cudaPointerGetAttributes(&facts, found);
  TORCH_CHECK(facts.type == cudaMemoryTypeManaged);
  return asks ? *found : 0;
}
"""


def test_host_code_that_reads_too_early_is_found_once_it_does() -> None:
    with emulate("H100") as session:
        built = torch.utils.cpp_extension.load_inline(
            "managed_counts", "int64_t positive(torch::Tensor x, bool, bool, bool);", SOURCE, functions=["positive"]
        )
        x = torch.tensor([1.0, -1.0, 2.0, 0.0] * 500, device="cuda")
        assert built.positive(x, True, False, True) == 1000  # it waits for the device
        assert built.positive(x[:1000], False, True, True) == 500  # or for an event
        assert built.positive(x[:500], False, False, False) == 0  # or asks nothing
        torch.cuda.synchronize()
        assert not any(finding.code == "cuda-early-use" for finding in session.findings())
        built.positive(x, False, False, True)
        line = sys._getframe().f_lineno - 1
        found = [finding for finding in session.findings() if finding.code == "cuda-early-use"]
    assert [(Path(one.site.file).name, one.site.line) for one in found] == [(Path(__file__).name, line)]


def test_host_code_may_add_beside_a_kernels_atomics_of_the_system() -> None:
    with emulate("H100") as session:
        built = torch.utils.cpp_extension.load_inline(
            "managed_sums", "int64_t beside(bool);", SOURCE, functions=["beside"]
        )
        assert built.beside(True) == 2 * 64 + 1
        assert not any(finding.code == "cuda-early-use" for finding in session.findings())
        assert built.beside(False) == 65
        assert [finding.code for finding in session.findings()].count("cuda-early-use") == 1
