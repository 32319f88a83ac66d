// https://github.com/numba/numba/pull/6127: a warp's lanes add up in shared memory without a word to each other.
// <<<2, 64>>>(float[128], float[2])
template <bool Right> __device__ void reduce(const float *x, float *y) {
  __shared__ float room[64];
  const int t = threadIdx.x;
  room[t] = x[blockIdx.x * 64 + t];
  __syncthreads();
  if (t < 32) {
    for (int n = 32; n > 0; n /= 2) {
      float sum = t < n ? room[t] + room[t + n] : 0.f;  // fault: warp-race
      if (Right) __syncwarp();
      if (t < n) room[t] = sum;
      if (Right) __syncwarp();
    }
    if (t == 0) y[blockIdx.x] = room[0];
  }
}
__global__ void faulty(const float *x, float *y) { reduce<false>(x, y); }
__global__ void right(const float *x, float *y) { reduce<true>(x, y); }
