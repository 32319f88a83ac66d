// https://github.com/deepseek-ai/FlashMLA/pull/57: a named barrier is told of twice the threads that come.
// <<<1, 256>>>(float[256], float[256]=0)
__global__ void faulty(const float *x, float *y) {
  __shared__ float s[256];
  if (threadIdx.x < 128) {
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("bar.sync 1, 256;" ::: "memory");  // fault: deadlock
    y[threadIdx.x] = s[127 - threadIdx.x];
  } else y[threadIdx.x] = x[threadIdx.x];
}
__global__ void right(const float *x, float *y) {
  __shared__ float s[256];
  if (threadIdx.x < 128) {
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("bar.sync 1, 128;" ::: "memory");
    y[threadIdx.x] = s[127 - threadIdx.x];
  } else y[threadIdx.x] = x[threadIdx.x];
}
