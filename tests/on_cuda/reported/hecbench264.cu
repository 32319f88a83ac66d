// https://github.com/ORNL/HeCBench/issues/264: a block reads how long its queue is while one thread sets it anew.
// <<<1, 128>>>(int[128], int[128]=0, int[1]=0)
template <bool Right> __device__ void search(const int *cost, int *found, int *levels) {
  __shared__ int tail, queue[128];
  if (threadIdx.x == 0) tail = 1;
  __syncthreads();
  for (int level = 0; level < 3; level++) {
    int n = tail;
    if (Right) __syncthreads();
    if (threadIdx.x == 0) tail = 0;  // fault: warp-race
    __syncthreads();
    if (threadIdx.x < n + level) queue[atomicAdd(&tail, 1)] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < tail) found[queue[threadIdx.x]] = 1 + (cost[threadIdx.x] & 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) levels[0] = tail;
}
__global__ void faulty(const int *cost, int *found, int *levels) { search<false>(cost, found, levels); }
__global__ void right(const int *cost, int *found, int *levels) { search<true>(cost, found, levels); }
