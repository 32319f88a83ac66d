// https://github.com/ORNL/HeCBench/issues/261: rows of a tile are read while other threads lower them.
// <<<2, (32, 32)>>>(int[2048], 32)
template <bool RIGHT> __device__ void lower(int *distances, int n) {
  __shared__ int s[32 * 32];
  int x = threadIdx.x, y = threadIdx.y, me = y * 32 + x, *own = distances + (blockIdx.x * 32 + y) * n + x;
  s[me] = *own & 0xffff;
  __syncthreads();
  for (int k = 0; k < n; k++) {
    int way = s[k * 32 + x] + s[y * 32 + k];
    if (RIGHT) __syncthreads();
    if (way < s[me]) s[me] = way;  // fault: shared-race
    if (RIGHT) __syncthreads();
  }
  *own = s[me];
}
extern "C" __global__ void faulty(int *distances, int n) { lower<false>(distances, n); }
extern "C" __global__ void right(int *distances, int n) { lower<true>(distances, n); }
