// https://github.com/acts-project/acts/pull/307: a barrier under a condition that depends on the thread.
// <<<1, 96>>>(int[96], int[96]=0, 80)
__global__ void faulty(const int *x, int *y, int n) {
  __shared__ int found[96];
  const int t = threadIdx.x;
  found[t] = 0;
  if (t < n) {
    found[t] = x[t];
    __syncthreads();  // fault: missed-barrier
    y[t] = found[n - 1 - t];
  }
}
__global__ void right(const int *x, int *y, int n) {
  __shared__ int found[96];
  const int t = threadIdx.x;
  found[t] = t < n ? x[t] : 0;
  __syncthreads();
  if (t < n) y[t] = found[n - 1 - t];
}
