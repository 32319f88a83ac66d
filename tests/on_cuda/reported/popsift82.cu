// https://github.com/alicevision/popsift/pull/82: racecheck reports a write beside an atomic.
// <<<1, 128>>>(int[128], int[64])
__global__ void faulty(const int *x, int *y) {
  __shared__ int hist[64];
  if (threadIdx.x < 64) hist[threadIdx.x] = 0;
  atomicAdd(&hist[x[threadIdx.x] & 63], 1);  // fault: shared-race
  __syncthreads();
  if (threadIdx.x < 64) y[threadIdx.x] = hist[threadIdx.x];
}
__global__ void right(const int *x, int *y) {
  __shared__ int hist[64];
  if (threadIdx.x < 64) hist[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&hist[x[threadIdx.x] & 63], 1);
  __syncthreads();
  if (threadIdx.x < 64) y[threadIdx.x] = hist[threadIdx.x];
}
