// A maximum of floats by compare and swap, as many programs have it: what it reads first may change meanwhile.
// <<<4, 64>>>(float[256], float[2]=0)
__device__ void most(float *a, float v) {
  int *p = (int *)a, old = *p, assumed;  // fault: shared-uninitialized-read
  do {
    assumed = old;
    if (__int_as_float(assumed) >= v) break;
    old = atomicCAS(p, assumed, __float_as_int(v));
  } while (old != assumed);
}
template <bool Right> __device__ void all(const float *x, float *y) {
  __shared__ float s;
  if (Right && threadIdx.x == 0) s = -1e9f;
  __syncthreads();
  most(&s, x[blockIdx.x * blockDim.x + threadIdx.x]);
  most(y + 1, x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) most(y, s);
}
__global__ void faulty(const float *x, float *y) { all<false>(x, y); }
__global__ void right(const float *x, float *y) { all<true>(x, y); }
