// https://github.com/PaddlePaddle/Paddle/pull/56435: the variance's parts overwrite the mean's, which others still read.
// <<<2, 128>>>(float[256], float[256]=0)
__device__ float over_warps(float v, float *parts) {
  for (int n = 16; n > 0; n /= 2) v += __shfl_xor_sync(0xffffffff, v, n);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;  // fault: shared-race
  __syncthreads();
  return parts[0] + parts[1] + parts[2] + parts[3];
}
__device__ void layer_norm(const float *x, float *y, bool waits) {
  __shared__ float parts[4];
  int i = blockIdx.x * 128 + threadIdx.x;
  float mean = over_warps(x[i], parts) / 128;
  if (waits) __syncthreads();
  float variance = over_warps((x[i] - mean) * (x[i] - mean), parts) / 128;
  y[i] = (x[i] - mean) * rsqrtf(variance + 1e-5f);
}
__global__ void faulty(const float *x, float *y) { layer_norm(x, y, false); }
__global__ void right(const float *x, float *y) { layer_norm(x, y, true); }
