// https://github.com/NVIDIA/cuda-samples/issues/398: a mask of one lane, which takes what lanes outside of it have.
// <<<2, 32>>>(float[64], float[2]=0)
__device__ float total(unsigned mask, float v, int width) {
  for (int n = width / 2; n > 0; n /= 2) v += __shfl_down_sync(mask, v, n, width);  // fault: absent-lane
  return v;
}
__device__ void rows(const float *x, float *out, int width) {
  __shared__ float s[32];
  int t = threadIdx.x, warps = blockDim.x / 32;
  float v = total(0xffffffff, x[blockIdx.x * blockDim.x + t], 32);
  if (t % 32 == 0) s[t / 32] = v;
  __syncthreads();
  unsigned mask = __ballot_sync(0xffffffff, t < warps);
  if (t < warps) {
    v = total(mask, s[t], width ? width : warps);
    if (t == 0) out[blockIdx.x] = v;
  }
}
__global__ void faulty(const float *x, float *out) { rows(x, out, 32); }
__global__ void right(const float *x, float *out) { rows(x, out, 0); }
