// https://github.com/tpruvot/ccminer/pull/75: lanes take what other lanes of the warp have just put into shared memory.
// <<<1, 32>>>(int[32], int[32]=0)
template <bool Right> __device__ void levels(const int *x, int *out) {
  __shared__ int level[48];
  int lane = threadIdx.x;
  if (lane % 16 == 0) level[lane] = x[lane], level[lane + 8] = x[lane + 8];
  if (Right) __syncwarp();
  if (lane % 8 == 0) level[lane + 4] = level[lane] ^ x[lane + 4];  // fault: warp-race
  __syncwarp();
  out[lane] = lane % 4 == 0 ? level[lane] : 0;
}
__global__ void faulty(const int *x, int *out) { levels<false>(x, out); }
__global__ void right(const int *x, int *out) { levels<true>(x, out); }
