// https://github.com/NVIDIA/Fuser/pull/3438: wrong results where a copy is not waited for.
// <<<1, 64>>>(float[320], float[64], float[64], 5)
#include <cuda_pipeline.h>
template <bool Right> __device__ void add(const float *x, const float *z, float *y, int n) {
  __shared__ float a[5][64], b[64];
  int t = threadIdx.x;
  for (int i = 0; i < n; i++) __pipeline_memcpy_async(&a[i][t], x + 64 * i + t, 4);
  if (!Right) __pipeline_commit();
  if (!Right) __pipeline_wait_prior(0);
  __pipeline_memcpy_async(&b[t], z + t, 4);
  if (Right) __pipeline_commit();
  if (Right) __pipeline_wait_prior(0);
  float sum = 0;
  for (int i = 0; i < n; i++) sum += a[i][t];
  y[t] = sum + b[t];  // fault: copy-under-way
}
__global__ void faulty(const float *x, const float *z, float *y, int n) { add<false>(x, z, y, n); }
__global__ void right(const float *x, const float *z, float *y, int n) { add<true>(x, z, y, n); }
