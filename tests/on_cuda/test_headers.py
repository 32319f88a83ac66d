"""Our own headers in place of NVIDIA's, with sources that others wrote for those."""

from __future__ import annotations

from pathlib import Path

from windtunnel import gpus
from windtunnel.single_kernel import run

CONVERTS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Half {  // as PyTorch's
  unsigned short x;
  __host__ __device__ operator float() const { return x; }
  __host__ __device__ operator __half() const { return __half(1.f); }
};
__global__ void compare(float *y, const float *x) {
  __half a = __float2half(x[0]), b = __float2half(x[1]);
  Half c{1}, d{2};
  y[0] = (a < b) + 2 * (a == b) + 4 * (c < d) + 8 * (a > b) + 16 * (a < 0.5f) + 32 * (a != 0);
  __nv_bfloat16 e = __float2bfloat16(x[0]), f = e;
  y[1] = (e >= f) + 2 * (e != f);
}
float host(float x) { return rsqrtf(x) + (float)rsqrt((double)x) + normcdff(x) + rcbrtf(x); }
"""


def test_what_converts_to_half_is_compared_as_a_number(tmp_path: Path) -> None:
    # https://github.com/NVIDIA/apex's layer norm
    file = tmp_path / "compare.cu"
    file.write_text(CONVERTS)
    done = run(file, "compare<<<1, 1>>>(float[2]=0, float[2]=1)", gpus.find("H100"))
    assert done.arrays[0]["first"] == [2 + 4 + 32, 1]


def test_funnel_shifts_wrap_or_stop_at_a_word(tmp_path: Path) -> None:
    # https://github.com/turboderp-org/exllamav2; PTX guide, "shf": by 32 bits at most, or by the lowest 5 alone
    file = tmp_path / "shifts.cu"
    file.write_text("""__global__ void shifts(unsigned *y, unsigned lo, unsigned hi, unsigned n) {
  y[0] = __funnelshift_lc(lo, hi, n), y[1] = __funnelshift_rc(lo, hi, n);
  y[2] = __funnelshift_l(lo, hi, n), y[3] = __funnelshift_r(lo, hi, n);
}
""")
    whole = 7 << 32 | 5
    for shift, wrapped in ((4, 4), (32, 0), (40, 8)):
        done = run(file, f"shifts<<<1, 1>>>(unsigned[4]=0, 5, 7, {shift})", gpus.find("H100"))
        most = min(shift, 32)
        wanted = [whole << most >> 32, whole >> most, whole << wrapped >> 32, whole >> wrapped]
        assert done.arrays[0]["first"] == [number & 0xFFFFFFFF for number in wanted]
