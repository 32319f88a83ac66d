// https://github.com/mark-poscablo/gpu-sum-reduction/issues/1: the last warp adds without barriers.
// <<<2, 128>>>(float[256], float[2]=0)
__global__ void faulty(const float *x, float *out) {
  __shared__ float s[128];
  unsigned t = threadIdx.x;
  s[t] = x[blockIdx.x * 128 + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32];
    for (int step = 16; step > 0; step /= 2)
      if (t < step) s[t] += s[t + step];  // fault: warp-race
  }
  if (t == 0) out[blockIdx.x] = s[0];
}
__global__ void right(const float *x, float *out) {
  __shared__ float s[128];
  unsigned t = threadIdx.x;
  s[t] = x[blockIdx.x * 128 + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32];
    for (int step = 16; step > 0; step /= 2) {
      __syncwarp();
      if (t < step) s[t] += s[t + step];
    }
  }
  if (t == 0) out[blockIdx.x] = s[0];
}
