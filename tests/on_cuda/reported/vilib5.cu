// https://github.com/uzh-rpg/vilib/pull/5: a shuffle of the whole warp that only the threads of a cell reach.
// <<<1, 64>>>(float[64], float[2]=0, 40)
template <bool Right> __device__ void best(const float *score, float *out, int cell) {
  float most = threadIdx.x < cell ? score[threadIdx.x] : 0.f;
  if (Right || threadIdx.x < cell)
    for (int k = 16; k > 0; k /= 2) most = fmaxf(most, __shfl_down_sync(0xffffffff, most, k));  // fault: missing-lanes
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = most;
}
__global__ void faulty(const float *score, float *out, int cell) { best<false>(score, out, cell); }
__global__ void right(const float *score, float *out, int cell) { best<true>(score, out, cell); }
