// https://github.com/PaddlePaddle/CINN/pull/938: a product over 20 threads, into which lanes that are not there come as zeros.
// <<<1, 20>>>(float[20]=2, float[1]=0)
__device__ float product(float v, bool guarded) {
  for (int n = 16; n > 0; n /= 2) {
    float other = __shfl_down_sync(0xfffff, v, n);  // fault: absent-lane
    v *= guarded && threadIdx.x + n >= blockDim.x ? 1.f : other;
  }
  return v;
}
__global__ void faulty(const float *x, float *out) {
  float v = product(x[threadIdx.x], false);
  if (threadIdx.x == 0) *out = v;
}
__global__ void right(const float *x, float *out) {
  float v = product(x[threadIdx.x], true);
  if (threadIdx.x == 0) *out = v;
}
