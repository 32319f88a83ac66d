// https://github.com/brucefan1983/CUDA-Programming/pull/51: warp functions of a mask that lane 0, which calls them too, is not in.
// <<<1, 16>>>(int[16]=0)
template <bool Right> __device__ void votes(int *out) {
  int tid = threadIdx.x, lane = tid % 16;
  unsigned others = 0xfffe;
  if (!Right) out[tid] = __all_sync(others, tid);  // fault: missing-lanes
  else if (lane) out[tid] = __all_sync(others, tid);
}
__global__ void faulty(int *out) { votes<false>(out); }
__global__ void right(int *out) { votes<true>(out); }
