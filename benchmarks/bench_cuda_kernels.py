"""What CUDA C++ kernels cost beside the same operation of plain PyTorch on one core, with checks and without.

    python -m benchmarks.bench_cuda_kernels            # make bench-cuda; --record writes the figures

Times are this process's processor time, the median of several launches. `first` is what the first launch of a kernel
takes beyond a later one once clang has made its PTX: its translation, with nothing in the cache. A checked launch looks
at all blocks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.nn.functional as F
from tools.docs import figures

from windtunnel import emulate

GPU = "H100"
N, ROWS, COLUMNS, SIDE = 1 << 22, 2048, 1024, 512
KINDS = {"pointwise": 3, "rows": 5, "shared": 40, "products": 30}
"""How many times as long as PyTorch's operation a kernel may take."""
CHECKED, ROUNDS = 5, 3
HEAD = r"""
__device__ float total(float v, float *s) {
  for (int n = 16; n; n /= 2) v += __shfl_xor_sync(-1, v, n);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? s[threadIdx.x % 32] : 0;
  for (int n = 16; n; n /= 2) v += __shfl_xor_sync(-1, v, n);
  __syncthreads();
  return v;
}
__device__ float largest(float v, float *s) {
  for (int n = 16; n; n /= 2) v = fmaxf(v, __shfl_xor_sync(-1, v, n));
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[threadIdx.x % 32 % (blockDim.x / 32)];
  for (int n = 16; n; n /= 2) v = fmaxf(v, __shfl_xor_sync(-1, v, n));
  __syncthreads();
  return v;
}
"""


@dataclass(frozen=True)
class Case:
    """A kernel, its launch, and PyTorch's operation."""

    kind: str
    name: str
    body: str
    grid: Sequence[int]
    block: Sequence[int]
    made: Callable[[], list[torch.Tensor]]
    plain: Callable[..., object]


def _vectors() -> list[torch.Tensor]:
    return [torch.randn(N), torch.randn(N)]


def _rows() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def _matrices() -> list[torch.Tensor]:
    return [torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)]


EACH = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < {n}) o[i] = {value};"
FLAT, WIDE = (N // 256, 1, 1), (256, 1, 1)


def _each(name: str, value: str, plain: Callable[..., object]) -> Case:
    return Case("pointwise", name, EACH.format(n=N, value=value), FLAT, WIDE, _vectors, plain)


def _row(name: str, body: str, plain: Callable[..., object], kind: str = "rows") -> Case:
    head = (
        f"const int C = {COLUMNS}; __shared__ float s[256]; const float *r = a + blockIdx.x * C; int t = threadIdx.x;"
    )
    return Case(kind, name, head + body, (ROWS, 1, 1), WIDE, _rows, plain)


SOFTMAX = """float *q = o + blockIdx.x * C, m = -3e38f, z = 0;
  for (int i = t; i < C; i += 256) m = fmaxf(m, r[i]);
  m = largest(m, s);
  for (int i = t; i < C; i += 256) { float e = expf(r[i] - m); q[i] = e; z += e; }
  z = total(z, s);
  for (int i = t; i < C; i += 256) q[i] /= z;"""
LAYER_NORM = """float *q = o + blockIdx.x * C, v = 0, d = 0;
  for (int i = t; i < C; i += 256) v += r[i];
  v = total(v, s) / C;
  for (int i = t; i < C; i += 256) d += (r[i] - v) * (r[i] - v);
  d = rsqrtf(total(d, s) / C + 1e-5f);
  for (int i = t; i < C; i += 256) q[i] = (r[i] - v) * d;"""
ROOT_NORM = """float *q = o + blockIdx.x * C, d = 0;
  for (int i = t; i < C; i += 256) d += r[i] * r[i];
  d = rsqrtf(total(d, s) / C + 1e-5f);
  for (int i = t; i < C; i += 256) q[i] = r[i] * d;"""
TREE = """float v = 0;
  for (int i = t; i < C; i += 256) v += r[i];
  s[t] = v;
  __syncthreads();
  for (int k = 128; k; k /= 2) { if (t < k) s[t] += s[t + k]; __syncthreads(); }
  if (t == 0) o[blockIdx.x] = s[0];"""
HISTOGRAM = """s[t] = 0;
  __syncthreads();
  for (int i = t; i < C; i += 256) atomicAdd((int *)s + ((int)(fabsf(r[i]) * 64) & 255), 1);
  __syncthreads();
  atomicAdd((int *)o + t, ((int *)s)[t]);"""
TILED = """__shared__ float p[16][16], q[16][16];
  int x = threadIdx.x, y = threadIdx.y, c = blockIdx.x * 16 + x, w = blockIdx.y * 16 + y, K = {side};
  float v = 0;
  for (int k = 0; k < K; k += 16) {{
    p[y][x] = a[w * K + k + x], q[y][x] = b[(k + y) * K + c];
    __syncthreads();
    for (int j = 0; j < 16; j++) v += p[y][j] * q[j][x];
    __syncthreads();
  }}
  o[w * K + c] = v;"""
REGISTERS = """__shared__ float p[64][8], q[8][64];
  const int K = {side};
  int t = threadIdx.x, x = t % 64, y = t / 64, w = blockIdx.y * 64, c = blockIdx.x * 64;
  float v[8] = {{0}};
  for (int k = 0; k < K; k += 8) {{
    p[t / 8][t % 8] = a[(w + t / 8) * K + k + t % 8], q[t / 64][t % 64] = b[(k + t / 64) * K + c + t % 64];
    __syncthreads();
    for (int j = 0; j < 8; j++) {{ float e = q[j][x]; for (int i = 0; i < 8; i++) v[i] += p[y * 8 + i][j] * e; }}
    __syncthreads();
  }}
  for (int i = 0; i < 8; i++) o[(w + y * 8 + i) * K + c + x] = v[i];"""
CASES = (
    _each("saxpy", "2.5f * a[i] + b[i]", lambda a, b: torch.add(b, a, alpha=2.5)),
    _each("relu", "fmaxf(a[i], 0)", lambda a, b: torch.relu(a)),
    _each("gelu", "0.5f * a[i] * (1 + erff(a[i] * 0.70710678f))", lambda a, b: F.gelu(a)),
    _each("swish", "a[i] / (1 + expf(-a[i]))", lambda a, b: F.silu(a)),
    _row("softmax", SOFTMAX, lambda a: a.softmax(1)),
    _row("layer norm", LAYER_NORM, lambda a: F.layer_norm(a, (COLUMNS,))),
    _row("RMS norm", ROOT_NORM, lambda a: F.rms_norm(a, (COLUMNS,), eps=1e-5)),
    _row("sum of rows by a tree", TREE, lambda a: a.sum(1), "shared"),
    _row("histogram", HISTOGRAM, lambda a: torch.histc(a.abs(), 256, 0, 4), "shared"),
    Case("products", "tiles of 16 x 16", TILED.format(side=SIDE), (SIDE // 16,) * 2, (16, 16), _matrices, torch.mm),
    Case("products", "tiles in registers", REGISTERS.format(side=SIDE), (SIDE // 64,) * 2, (512,), _matrices, torch.mm),
)


def timed(act: Callable[[], object], turns: int) -> float:
    """The median processor time of several calls."""
    found = []
    for _ in range(turns):
        begin = time.process_time()
        act()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def emulated(case: Case, checks: str) -> tuple[float, float]:
    """Seconds of the first launch and of a later one."""
    inputs = case.made()
    names = [f"const float *{name}" for name in "ab"[: len(inputs)]]
    source = HEAD + f'extern "C" __global__ void k({", ".join(names)}, float *o) {{ {case.body} }}'
    with emulate(GPU, check_kernels=checks) as session:
        del session
        given = [one.cuda() for one in inputs]
        out = torch.zeros(max(one.numel() for one in given), device="cuda")
        kernel = torch.cuda._compile_kernel(source, "k")

        def launch() -> None:
            kernel(grid=(*case.grid, 1, 1)[:3], block=(*case.block, 1, 1)[:3], args=[*given, out])
            torch.cuda.synchronize()

        first = timed(launch, 1)
        return first, timed(launch, 5)


def measured(case: Case) -> dict[str, float | str]:
    """The row of a kernel."""
    inputs = case.made()
    case.plain(*inputs)
    cold, _ = emulated(case, "all")
    emulated(case, "none")
    found = []
    for _ in range(ROUNDS):  # in turn: what else the machine does changes all of them
        plain = timed(lambda: case.plain(*inputs), 9)
        warm, checked = emulated(case, "all")
        found.append((plain, emulated(case, "none")[1], checked, warm))
    plain, bare, checked, warm = (statistics.median(of) for of in zip(*found, strict=True))
    return {"kind": case.kind, "name": case.name, "plain": round(plain * 1e3, 2), "ratio": round(bare / plain, 1),
            "checked": round(checked / bare, 1), "first": round(cold - warm, 2)}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels whose name has this")
    parser.add_argument("--record", action="store_true", help="write docs/figures/cuda-kernels.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(f"{'kernel':<24}{'PyTorch, ms':>12}{'ratio':>8}{'may be':>8}{'checked':>9}{'first, s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for case in CASES:
            if options.only not in case.name:
                continue
            row = measured(case)
            rows[case.name.replace(" ", "-")] = row
            print(f"{case.name:<24}{row['plain']:>12.3f}{row['ratio']:>8.1f}{KINDS[case.kind]:>8}{row['checked']:>9.1f}"
                  f"{row['first']:>10.2f}", flush=True)  # fmt: skip
    if options.record:
        figures.record("cuda-kernels", rows)


if __name__ == "__main__":
    main()
