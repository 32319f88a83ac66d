// https://github.com/ORNL/HeCBench/pull/221: lanes take a pointer that lane 0 has just put into shared memory.
// <<<2, 64>>>(float[128], float[128])
template <bool Waits> __device__ void scaled(const float *x, float *o) {
  __shared__ const float *at[2];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) at[warp] = x + blockIdx.x * 64 + warp * 32;
  if (Waits) __syncwarp();
  const float *mine = at[warp];  // fault: warp-race
  o[blockIdx.x * 64 + threadIdx.x] = mine[lane] * 2;
}
__global__ void faulty(const float *x, float *o) { scaled<false>(x, o); }
__global__ void right(const float *x, float *o) { scaled<true>(x, o); }
