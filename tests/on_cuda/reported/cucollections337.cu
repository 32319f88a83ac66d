// https://github.com/NVIDIA/cuCollections/pull/337: racecheck reports it; votes order nothing in memory.
// <<<1, 32>>>(int[128]=1, int[256])
template <bool Right> __device__ void flush(const int *x, int *y) {
  __shared__ int counter[2], buffer[2][64];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, done = 0;
  if (lane == 0) counter[warp] = 0;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    int v = x[32 * i + lane];
    bool take = v & 1;
    unsigned votes = __ballot_sync(0xffffffffu, take);
    if (take) buffer[warp][counter[warp] + __popc(votes & ((1u << lane) - 1))] = v;  // fault: warp-race
    __syncwarp();
    if (lane == 0) counter[warp] += __popc(votes);
    __syncwarp();
    if (counter[warp] > 16) {
      for (int j = lane; j < counter[warp]; j += 32) y[done + j] = buffer[warp][j];
      done += counter[warp];
      __syncwarp();
      if (lane == 0) counter[warp] = 0;
      if (Right) __syncwarp();
    }
  }
}
__global__ void faulty(const int *x, int *y) { flush<false>(x, y); }
__global__ void right(const int *x, int *y) { flush<true>(x, y); }
