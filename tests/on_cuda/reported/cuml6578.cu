// https://github.com/NVIDIA/cuml/pull/6578: _block_gemv has no barrier between a reduction and the next row.
// <<<4, 64>>>(float[1024], float[64], float[16])
template <bool Waits> __device__ void gemv(const float *a, const float *x, float *y) {
  __shared__ float s[64];
  for (int row = 0; row < 4; row++) {
    s[threadIdx.x] = a[(blockIdx.x * 4 + row) * 64 + threadIdx.x] * x[threadIdx.x];  // fault: shared-race
    __syncthreads();
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int i = 0; i < 64; i++) sum += s[i];
      y[blockIdx.x * 4 + row] = sum;
    }
    if (Waits) __syncthreads();
  }
}
__global__ void faulty(const float *a, const float *x, float *y) { gemv<false>(a, x, y); }
__global__ void right(const float *a, const float *x, float *y) { gemv<true>(a, x, y); }
