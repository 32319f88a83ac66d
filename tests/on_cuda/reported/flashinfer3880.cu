// https://github.com/flashinfer-ai/flashinfer/pull/3880: a maximum over 180 threads, whose last warp has 20 lanes.
// <<<2, 180>>>(float[360], float[2]=0)
__device__ float most(float v, int lanes) {
  unsigned mask = lanes == 32 ? 0xffffffff : (1u << lanes) - 1;
  int lane = threadIdx.x % 32;
  for (int n = 16; n > 0; n /= 2) {
    float other = __shfl_xor_sync(mask, v, n);
    if ((lane ^ n) < lanes) v = fmaxf(v, other);
  }
  return v;
}
__device__ float most_of_32(float v) {
  for (int n = 16; n > 0; n /= 2) v = fmaxf(v, -__shfl_xor_sync(0xffffffff, -v, n));  // fault: absent-lane
  return v;
}
__device__ void rows(const float *x, float *out, bool whole) {
  __shared__ float s[32];
  int t = threadIdx.x, warp = t / 32, lanes = min(32, (int)blockDim.x - warp * 32);
  float v = x[blockIdx.x * blockDim.x + t];
  v = whole ? most_of_32(v) : most(v, lanes);
  if (t % 32 == 0) s[warp] = v;
  __syncthreads();
  if (t == 0) {
    for (int i = 1; i < (blockDim.x + 31) / 32; i++) v = fmaxf(v, s[i]);
    out[blockIdx.x] = v;
  }
}
__global__ void faulty(const float *x, float *out) { rows(x, out, true); }
__global__ void right(const float *x, float *out) { rows(x, out, false); }
