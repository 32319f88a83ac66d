// https://github.com/karpathy/llm.c/blob/master/dev/cuda/attention_backward.cu: a sum of a block in a loop (kernel 8).
// <<<2, 64>>>(float[512], float[512]=0)
template <bool Right> __device__ void centred(const float *x, float *y) {
  __shared__ float sums[2];
  for (int row = 0; row < 4; row++) {
    int i = (blockIdx.x * 4 + row) * 64 + threadIdx.x;
    float sum = x[i];
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffff, sum, k);
    sums[threadIdx.x / 32] = sum;  // fault: shared-race
    __syncthreads();
    y[i] = x[i] - (sums[0] + sums[1]);
    if (Right) __syncthreads();
  }
}
__global__ void faulty(const float *x, float *y) { centred<false>(x, y); }
__global__ void right(const float *x, float *y) { centred<true>(x, y); }
