// https://github.com/tile-ai/tilelang/issues/1026: the GPU hangs.
// <<<1, 32>>>(float[32])
__global__ void faulty(float *y) {
  __shared__ float shared_mem[32];
  int t = threadIdx.x;
  shared_mem[t] = t;
  __syncthreads();
  if (t % 2 == 0) {
    float a = shared_mem[t];
    __syncthreads();  // fault: divergent-barrier
    shared_mem[t ^ 1] = a;
  }
  __syncthreads();
  y[t] = shared_mem[t];
}
__global__ void right(float *y) {
  __shared__ float shared_mem[32];
  int t = threadIdx.x;
  shared_mem[t] = t;
  __syncthreads();
  float a = shared_mem[t];
  __syncthreads();
  if (t % 2 == 0) shared_mem[t ^ 1] = a;
  __syncthreads();
  y[t] = shared_mem[t];
}
