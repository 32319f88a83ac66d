// https://github.com/ORNL/HeCBench/issues/256: a stage reads what its neighbour has left, which that sets meanwhile.
// <<<(2), (64)>>>(float[128], float[128]=empty, 8)
__global__ void faulty(const float *x, float *y, int n) {
  __shared__ float out[64];
  out[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  float v = 0;
  for (int i = 0; i < n; i++) {
    v = 0.5f * v + (threadIdx.x ? out[threadIdx.x - 1] : 1.f);  // fault: shared-race
    out[threadIdx.x] = v;
    __syncthreads();
  }
  y[blockIdx.x * 64 + threadIdx.x] = v;
}
__global__ void right(const float *x, float *y, int n) {
  __shared__ float out[64];
  out[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  float v = 0;
  for (int i = 0; i < n; i++) {
    v = 0.5f * v + (threadIdx.x ? out[threadIdx.x - 1] : 1.f);
    __syncthreads();
    out[threadIdx.x] = v;
    __syncthreads();
  }
  y[blockIdx.x * 64 + threadIdx.x] = v;
}
