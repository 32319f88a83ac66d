// https://github.com/dlsys-course/examples/issues/1: wrong sums in the last block.
// <<<2, 64>>>(float[160], float[100], 100)
#define R 3
#define B 64
template <bool Right> __device__ void sum_window(const float *a, float *b, int n) {
  __shared__ float s[B + 2 * R];
  int out = blockDim.x * blockIdx.x + threadIdx.x, local = threadIdx.x + R;
  int last = Right ? min(B, n - (int)(blockDim.x * blockIdx.x)) : B;
  if (out < n) {
    s[local] = a[out + R];
    if (threadIdx.x < R) {
      s[local - R] = a[out];
      s[local + last] = a[out + R + last];
    }
  }
  __syncthreads();
  if (out < n) {
    float sum = 0;
    for (int i = -R; i <= R; i++) sum += s[local + i];  // fault: shared-uninitialized-read
    b[out] = sum;
  }
}
__global__ void faulty(const float *a, float *b, int n) { sum_window<false>(a, b, n); }
__global__ void right(const float *a, float *b, int n) { sum_window<true>(a, b, n); }
