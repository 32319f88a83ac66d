"""CUDA programs with a `main` of their own: `windtunnel run --gpus H100 program.cu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
HEAD = """#include <cstdio>
#include "sizes.h"
void report(const float *y, int n);
__global__ void twice(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i + FAR];
  if (i == 0) printf("on the device\\n");
}
"""
MAIN = """int main(int argc, char **argv) {
  const int n = 1000;
  float *x, *y, *mapped;
  cudaMalloc(&y, n * sizeof(float));
  cudaHostAlloc(&x, n * sizeof(float), cudaHostAllocMapped);
  cudaHostGetDevicePointer(&mapped, x, 0);
  for (int i = 0; i < n; i++) x[i] = i;
  printf("%d arguments, the last %s\\n", argc, argv[argc - 1]);
  twice<<<(n + 255) / 256, 256>>>(mapped, y, n);
  if (cudaDeviceSynchronize() != cudaSuccess) exit(3);
  float *host = new float[n];
  cudaMemcpy(host, y, n * sizeof(float), cudaMemcpyDeviceToHost);
  report(host, n);
  cudaFree(y);
}
"""
REPORT = """#include <cstdio>
void report(const float *y, int n) {
  for (int i = 0; i < n; i++) if (y[i] != 2 * i) printf("wrong\\n");
  printf("right\\n");
}
"""


def run(folder: Path, flags: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "H100", "--report", "report.json", *arguments]
    variables = {**os.environ, "NVCC_APPEND_FLAGS": flags}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "sizes.h").write_text("#pragma once\n")
    (tmp_path / "program.cu").write_text(HEAD + MAIN)
    (tmp_path / "report.cpp").write_text(REPORT)
    return tmp_path


def test_a_program_runs_with_its_other_sources_and_arguments(folder: Path) -> None:
    done = run(folder, "-Iinclude -DFAR=0 report.cpp", "program.cu", "--size", "7")
    assert (done.returncode, done.stdout) == (0, "3 arguments, the last 7\non the device\nright\n"), done.stderr
    (device,) = json.loads((folder / "report.json").read_text())["devices"]
    assert (device["kernels"], device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (1, 4000, 2 << 20)


def test_a_fault_is_named_with_the_line_that_launched_it(folder: Path) -> None:
    done = run(folder, "-Iinclude '-DFAR=(1 << 28)' report.cpp", "program.cu")
    assert done.returncode == 3, done.stderr  # by exit(), which Python does not hear of
    (found,) = [
        one for one in json.loads((folder / "report.json").read_text())["findings"] if one["severity"] == "error"
    ]
    launched = (HEAD + MAIN).split("\n").index("  twice<<<(n + 255) / 256, 256>>>(mapped, y, n);") + 1
    assert (found["code"], found["line"]) == ("cuda-out-of-bounds", 6)
    assert f"launched at program.cu:{launched}" in found["message"]


def test_kernels_without_main_are_refused(folder: Path) -> None:
    (folder / "kernels.cu").write_text("__global__ void f() {}\n")
    done = run(folder, "", "kernels.cu")
    assert done.returncode == 1, done.stderr
    assert "kernels.cu has no main(): `windtunnel kernel` runs one of its kernels alone" in done.stderr
