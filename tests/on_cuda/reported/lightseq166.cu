// https://github.com/bytedance/lightseq/issues/166: a sum over a block whose last warp is not whole.
// <<<2, 48>>>(float[96], float[2]=0)
__device__ float total(float v, int lanes) {
  int lane = threadIdx.x % 32;
  for (int n = 16; n > 0; n /= 2) {
    float other = __shfl_xor_sync(0xffffffff, v, n);  // fault: absent-lane
    v += (lane ^ n) < lanes ? other : 0;
  }
  return v;
}
__device__ void rows(const float *x, float *out, bool all) {
  __shared__ float s[32];
  int t = threadIdx.x, warp = t / 32, warps = (blockDim.x + 31) / 32;
  float v = total(x[blockIdx.x * blockDim.x + t], all ? 32 : min(32, (int)blockDim.x - warp * 32));
  if (t % 32 == 0) s[warp] = v;
  __syncthreads();
  if (t == 0) {
    for (int i = 1; i < warps; i++) v += s[i];
    out[blockIdx.x] = v;
  }
}
__global__ void faulty(const float *x, float *out) { rows(x, out, true); }
__global__ void right(const float *x, float *out) { rows(x, out, false); }
