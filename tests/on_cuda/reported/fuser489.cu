// https://github.com/NVIDIA/Fuser/pull/489: validation fails now and then.
// <<<1, 128>>>(float[128], float[128])
template <bool Right> __device__ float all_sum(float v, float *shared) {
  for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;  // fault: shared-race
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < blockDim.x / 32; i++) sum += shared[i];
  if (Right) __syncthreads();
  return sum;
}
template <bool Right> __device__ void moments(const float *x, float *y) {
  __shared__ float shared[32];
  float v = x[threadIdx.x], mean = all_sum<Right>(v, shared) / blockDim.x;
  float variance = all_sum<Right>((v - mean) * (v - mean), shared) / blockDim.x;
  y[threadIdx.x] = (v - mean) * rsqrtf(variance + 1e-5f);
}
__global__ void faulty(const float *x, float *y) { moments<false>(x, y); }
__global__ void right(const float *x, float *y) { moments<true>(x, y); }
