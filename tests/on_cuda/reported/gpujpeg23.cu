// https://github.com/CESNET/GPUJPEG/pull/23: an illegal memory access, now and then.
// <<<1, 128>>>(int[128], int[128])
template <bool Right> __device__ void pack(const int *x, int *y) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  int n = x[threadIdx.x] & 7;
  atomicAdd(&count, n);
  if (Right) __syncthreads();
  y[threadIdx.x] = count;  // fault: shared-race
}
__global__ void faulty(const int *x, int *y) { pack<false>(x, y); }
__global__ void right(const int *x, int *y) { pack<true>(x, y); }
