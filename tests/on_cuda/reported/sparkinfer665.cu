// https://github.com/gittensor-ai-lab/sparkinfer/pull/665: the next token's sums overwrite the norm that others still read.
// <<<2, 128>>>(float[1024], float[1024]=0)
__device__ float norm(float v, float *sums) {
  int t = threadIdx.x;
  float square = v * v;
  for (int n = 16; n > 0; n /= 2) square += __shfl_xor_sync(0xffffffff, square, n);
  if ((t & 31) == 0) sums[t >> 5] = square;
  __syncthreads();
  if (t == 0) sums[0] = rsqrtf(sums[0] + sums[1] + sums[2] + sums[3] + 1e-6f);
  __syncthreads();
  return sums[0];  // fault: shared-race
}
__global__ void faulty(const float *x, float *y) {
  __shared__ float sums[4];
  for (int token = 0; token < 4; token++) {
    int at = (blockIdx.x * 4 + token) * 128 + threadIdx.x;
    y[at] = x[at] * norm(x[at], sums);
  }
}
__global__ void right(const float *x, float *y) {
  __shared__ float sums[4];
  for (int token = 0; token < 4; token++) {
    int at = (blockIdx.x * 4 + token) * 128 + threadIdx.x;
    y[at] = x[at] * norm(x[at], sums);
    __syncthreads();
  }
}
