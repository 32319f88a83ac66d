// https://github.com/rapidsai/cudf/issues/13485: the sum of a block, twice, with one barrier each.
// <<<2, 128>>>(int[512], int[4]=0)
template <bool Right> __device__ int sum_of_block(int v) {
  __shared__ int sums[32];
  for (int k = 16; k > 0; k /= 2) v += __shfl_down_sync(0xffffffff, v, k);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;  // fault: shared-race
  __syncthreads();
  int total = 0;
  if (threadIdx.x < 32) {
    total = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
    for (int k = 16; k > 0; k /= 2) total += __shfl_down_sync(0xffffffff, total, k);
  }
  if (Right) __syncthreads();
  return total;
}
template <bool Right> __device__ void count(const int *x, int *out) {
  for (int row = 0; row < 2; row++) {
    int sum = sum_of_block<Right>(x[(blockIdx.x * 2 + row) * blockDim.x + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x * 2 + row] = sum;
  }
}
__global__ void faulty(const int *x, int *out) { count<false>(x, out); }
__global__ void right(const int *x, int *out) { count<true>(x, out); }
