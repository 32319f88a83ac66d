"""Streams and memory that host code makes itself: what nothing orders is found, and blocking streams wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
PROGRAM = r"""#include <cstring>
const int n = 1 << 18;
__global__ void fill(float *x, float v) { x[blockIdx.x * 256 + threadIdx.x] = v; }
__global__ void twice(const float *x, float *y) { int i = blockIdx.x * 256 + threadIdx.x; y[i] = 2 * x[i]; }
// https://github.com/openvdb/fvdb-core/pull/587: a launch without the stream of those around it.
void other_stream(cudaStream_t s, float *x, float *y) {
  fill<<<n / 256, 256, 0, s>>>(x, 3);
  twice<<<n / 256, 256>>>(x, y);  // other
}
// https://github.com/NVlabs/cuda-oxide/issues/619: memory goes back to its stream while another one reads it.
void early_free(cudaStream_t s, float *y, bool waits) {
  cudaStream_t t;
  cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
  cudaEvent_t event;
  cudaEventCreate(&event);
  float *x;
  cudaMallocAsync(&x, 4 * n, s);
  fill<<<n / 256, 256, 0, s>>>(x, 3);
  cudaEventRecord(event, s);
  cudaStreamWaitEvent(t, event, 0);
  twice<<<n / 256, 256, 0, t>>>(x, y);
  cudaEventRecord(event, t);
  if (waits) cudaStreamWaitEvent(s, event, 0);
  cudaFreeAsync(x, s);  // freed
}
int main(int count, char **words) {
  const char *what = words[1];
  float *x, *y;
  cudaMalloc(&x, 4 * n);
  cudaMalloc(&y, 4 * n);
  cudaStream_t s;
  cudaStreamCreateWithFlags(&s, strcmp(what, "blocking") ? cudaStreamNonBlocking : cudaStreamDefault);
  if (!strcmp(what, "free") || !strcmp(what, "waits")) early_free(s, y, !strcmp(what, "waits"));
  else other_stream(s, x, y);
  cudaDeviceSynchronize();
}
"""


@pytest.mark.parametrize(
    ("what", "mark"), [("other", "// other"), ("blocking", ""), ("free", "// freed"), ("waits", "")]
)
def test_what_nothing_orders_is_found(tmp_path: Path, what: str, mark: str) -> None:
    (tmp_path / "program.cu").write_text(PROGRAM)
    command = ["-m", "windtunnel", "run", "--gpus", "H100", "--report", "report.json", "program.cu", what]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]
    lines = {one["line"] for one in findings if one["code"] == "unsynchronized-access"}
    assert lines == {n for n, line in enumerate(PROGRAM.split("\n"), 1) if mark and line.endswith(mark)}
