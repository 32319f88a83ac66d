// https://github.com/NVIDIA/Fuser/issues/678: idle threads clear the place of a reduction before its result is taken.
// <<<1, 64>>>(float[256], float[4])
template <bool Waits> __device__ void sums(const float *x, float *o) {
  __shared__ float total, part[64];
  for (int row = 0; row < 4; row++) {
    if (Waits) __syncthreads();
    total = 0;  // fault: shared-race
    part[threadIdx.x] = x[row * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) for (int i = 0; i < 64; i++) total += part[i];
    __syncthreads();
    if (threadIdx.x == 0) o[row] = total;
  }
}
__global__ void faulty(const float *x, float *o) { sums<false>(x, o); }
__global__ void right(const float *x, float *o) {
  __shared__ float total, part[64];
  for (int row = 0; row < 4; row++) {
    __syncthreads();
    if (threadIdx.x == 0) total = 0;
    part[threadIdx.x] = x[row * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) for (int i = 0; i < 64; i++) total += part[i];
    __syncthreads();
    if (threadIdx.x == 0) o[row] = total;
  }
}
