// https://github.com/sgl-project/sglang/pull/9620: groups of 16 lanes reduce with the mask of the lower half of the warp.
// <<<1, 128>>>(float[128], float[8]=0)
template <bool Right> __device__ void scales(const float *x, float *scale) {
  float most = fabsf(x[threadIdx.x]);
  unsigned mask = Right && threadIdx.x % 32 >= 16 ? 0xffff0000 : 0x0000ffff;
  if (Right || threadIdx.x % 32 >= 0)
    for (int k = 8; k > 0; k /= 2) most = fmaxf(most, __shfl_xor_sync(mask, most, k));  // fault: missing-lanes
  if (threadIdx.x % 16 == 0) scale[threadIdx.x / 16] = most / 448.f;
}
__global__ void faulty(const float *x, float *scale) { scales<false>(x, scale); }
__global__ void right(const float *x, float *scale) { scales<true>(x, scale); }
