// https://github.com/yelhousni/zprize-GPU-MSM-harness/pull/1: a hang that a delay brings out.
// <<<1, 128>>>(int[512], int[128], 4)
template <bool Right> __device__ void uniques(const int *x, int *y, int n) {
  __shared__ int values[128];
  int t = threadIdx.x, found = 0;
  for (int i = 0; i < n; i++) {
    int mine = x[128 * i + t];
    values[t] = mine;  // fault: shared-race
    __syncthreads();
    int same = 0;
    for (int j = 0; j < 128; j++) same += values[j] == mine;
    found += same == 1;
    if (Right) __syncthreads();
  }
  y[t] = found;
}
__global__ void faulty(const int *x, int *y, int n) { uniques<false>(x, y, n); }
__global__ void right(const int *x, int *y, int n) { uniques<true>(x, y, n); }
