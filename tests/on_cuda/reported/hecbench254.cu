// https://github.com/ORNL/HeCBench/issues/254: totals of one thread are read with no barrier in between.
// <<<2, 128>>>(int[256], int[256]=0)
__device__ unsigned total(unsigned value, unsigned *sums) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    unsigned other = __shfl_up_sync(0xffffffff, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  return value;
}
__global__ void faulty(const int *x, int *out) {
  __shared__ unsigned sums[32];
  unsigned value = total(x[blockIdx.x * 128 + threadIdx.x] & 7, sums);
  if (threadIdx.x == 0) {
    for (int i = 1; i < 4; i++) sums[i] += sums[i - 1];
    sums[31] = sums[3];
  }
  out[blockIdx.x * 128 + threadIdx.x] = value + sums[31];  // fault: shared-race
}
__global__ void right(const int *x, int *out) {
  __shared__ unsigned sums[32];
  unsigned value = total(x[blockIdx.x * 128 + threadIdx.x] & 7, sums);
  if (threadIdx.x == 0) {
    for (int i = 1; i < 4; i++) sums[i] += sums[i - 1];
    sums[31] = sums[3];
  }
  __syncthreads();
  out[blockIdx.x * 128 + threadIdx.x] = value + sums[31];
}
