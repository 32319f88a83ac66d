// https://github.com/csarofeen/pytorch/pull/2457: the loop commits its copies after its wait, which then waits for too few.
// <<<1, 64>>>(float[1024], float[64]=0)
#include <cuda_pipeline.h>
constexpr int STAGES = 3, TILES = 16;
template <bool Right> __device__ void sums(const float *x, float *y) {
  __shared__ float tile[STAGES][64];
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < STAGES - 1; i++) {
    __pipeline_memcpy_async(&tile[i][t], x + 64 * i + t, 4);
    __pipeline_commit();
  }
  __pipeline_wait_prior(STAGES - 2);
  __syncthreads();
  for (int i = 0; i < TILES; i++) {
    const int next = i + STAGES - 1;
    if (next < TILES) __pipeline_memcpy_async(&tile[next % STAGES][t], x + 64 * next + t, 4);
    if (Right) __pipeline_commit();
    sum += tile[i % STAGES][63 - t];  // fault: copy-under-way
    __pipeline_wait_prior(STAGES - 2);
    if (!Right) __pipeline_commit();
    __syncthreads();
  }
  y[t] = sum;
}
__global__ void faulty(const float *x, float *y) { sums<false>(x, y); }
__global__ void right(const float *x, float *y) { sums<true>(x, y); }
