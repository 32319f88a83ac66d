// https://github.com/proteneer/timemachine/pull/1481: the first lane reserves a place for its warp, which reads it from shared memory at once.
// <<<1, 64>>>(int[64], int[1]=0, int[64]=0)
template <bool Right> __device__ void compacted(const int *atoms, int *used, int *out) {
  __shared__ int start[2];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool keep = atoms[threadIdx.x] & 1;
  unsigned kept = __ballot_sync(0xffffffff, keep);
  if (lane == 0) start[warp] = atomicAdd(used, __popc(kept));
  if (Right) __syncwarp();
  if (keep) out[start[warp] + __popc(kept & ((1u << lane) - 1))] = threadIdx.x + 1;  // fault: warp-race
}
__global__ void faulty(const int *atoms, int *used, int *out) { compacted<false>(atoms, used, out); }
__global__ void right(const int *atoms, int *used, int *out) { compacted<true>(atoms, used, out); }
