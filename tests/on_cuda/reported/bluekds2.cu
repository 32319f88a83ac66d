// https://github.com/bluekds/CUDA_Programming/issues/2: 6303232 threads counted instead of 5242880.
// <<<4, 64>>>(int[1]=0)
template <bool Right> __device__ void count(int *a) {
  __shared__ int sa;
  if (Right) {
    if (threadIdx.x == 0) sa = 0;
    __syncthreads();
  }
  atomicAdd(&sa, 1);  // fault: shared-uninitialized-read
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(a, sa);
}
__global__ void faulty(int *a) { count<false>(a); }
__global__ void right(int *a) { count<true>(a); }
