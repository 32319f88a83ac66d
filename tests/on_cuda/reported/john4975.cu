// https://github.com/openwall/john/issues/4975: the first block sets the counter to which all add.
// <<<4, 64>>>(int[256], int[1]=0)
__global__ void faulty(const int *x, int *count) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *count = 0;
  __syncthreads();
  if (x[blockIdx.x * blockDim.x + threadIdx.x] > 3) atomicAdd(count, 1);  // fault: block-conflict
}
__global__ void right(const int *x, int *count) {
  if (x[blockIdx.x * blockDim.x + threadIdx.x] > 3) atomicAdd(count, 1);
}
