// https://github.com/ROCm/aiter/pull/4007: blocks spin for ever under load.
// <<<4, 64>>>(int[256], int[32]=0, unsigned[1]=0, int[128])
template <bool Right> __device__ void choose(const int *x, int *hist, unsigned *arrived, int *y) {
  atomicAdd(&hist[x[blockIdx.x * blockDim.x + threadIdx.x] & 31], 1);
  if (Right) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicInc(arrived, 1000);
    while (*(volatile unsigned *)arrived < gridDim.x) {}
  }
  __syncthreads();
  if (Right) __threadfence();
  if (threadIdx.x < 32) y[32 * blockIdx.x + threadIdx.x] = hist[threadIdx.x];  // fault: block-conflict
}
__global__ void faulty(const int *x, int *hist, unsigned *arrived, int *y) { choose<false>(x, hist, arrived, y); }
__global__ void right(const int *x, int *hist, unsigned *arrived, int *y) { choose<true>(x, hist, arrived, y); }
