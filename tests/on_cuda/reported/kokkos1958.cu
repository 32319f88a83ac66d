// https://github.com/kokkos/kokkos/issues/1958: synccheck reports invalid arguments of __syncwarp.
// <<<1, (8, 4)>>>(float[32], float[4])
template <bool Right> __device__ void reduce(const float *x, float *y) {
  __shared__ float s[4][8];
  int lane = threadIdx.y * 8 + threadIdx.x;
  s[threadIdx.y][threadIdx.x] = x[lane];
  unsigned mask = Right ? 0xffu << 8 * threadIdx.y : 0xffu;
  for (int o = 4; o; o /= 2) {
    __syncwarp(mask);  // fault: missing-lanes
    if (threadIdx.x < o) s[threadIdx.y][threadIdx.x] += s[threadIdx.y][threadIdx.x + o];
  }
  if (threadIdx.x == 0) y[threadIdx.y] = s[threadIdx.y][0];
}
__global__ void faulty(const float *x, float *y) { reduce<false>(x, y); }
__global__ void right(const float *x, float *y) { reduce<true>(x, y); }
