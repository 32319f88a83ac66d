// https://github.com/CanReader/FastNN/issues/8, https://github.com/Mantevo/miniFE/issues/13: wrong sums.
// <<<1, 64>>>(float[64], float[1])
__global__ void faulty(const float *x, float *y) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    volatile float *v = s;
    v[t] += v[t + 32];
    v[t] += v[t + 16];  // fault: warp-race
    v[t] += v[t + 8];
    v[t] += v[t + 4];
    v[t] += v[t + 2];
    v[t] += v[t + 1];
  }
  if (t == 0) y[0] = s[0];
}
__global__ void right(const float *x, float *y) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    float v = s[t] + s[t + 32];
    for (int o = 16; o; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);
    if (t == 0) y[0] = v;
  }
}
