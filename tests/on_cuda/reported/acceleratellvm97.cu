// https://github.com/AccelerateHS/accelerate-llvm/pull/97: the next chunk of a scan overwrites the sums that others still add.
// <<<1, 128>>>(int[1024], int[1024]=0, 1024)
template <bool Right> __device__ void scan(const int *x, int *y, int n) {
  __shared__ int sums[4];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  int carry = 0;
  for (int base = 0; base < n; base += 128) {
    int v = x[base + t];
    for (int k = 1; k < 32; k *= 2) {
      const int left = __shfl_up_sync(0xffffffff, v, k);
      if (lane >= k) v += left;
    }
    if (lane == 31) sums[warp] = v;  // fault: shared-race
    __syncthreads();
    int before = 0, all = 0;
    for (int i = 0; i < 4; i++) {
      if (i < warp) before += sums[i];
      all += sums[i];
    }
    y[base + t] = v + before + carry;
    carry += all;
    if (Right) __syncthreads();
  }
}
__global__ void faulty(const int *x, int *y, int n) { scan<false>(x, y, n); }
__global__ void right(const int *x, int *y, int n) { scan<true>(x, y, n); }
