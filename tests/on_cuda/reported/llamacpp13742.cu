// https://github.com/ggml-org/llama.cpp/pull/13742: each warp decides by itself to skip a tile, and one overwrites what another still reads.
// <<<1, 128>>>(float[1024]=1, float[128]=0, 8)
template <bool Right> __device__ void attend(const float *mask, float *out, int tiles) {
  __shared__ float shared[128];
  const int t = threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < tiles; tile++) {
    shared[t] = mask[tile * 128 + t];  // fault: shared-race
    __syncthreads();
    int skip = 1;
    for (int i = t % 32; i < 128; i += 32) skip = skip && shared[i] != 0.f;
    if (__all_sync(0xffffffff, skip)) {
      if (Right) __syncthreads();
      continue;
    }
    sum += shared[127 - t];
    __syncthreads();
  }
  out[t] = sum;
}
__global__ void faulty(const float *mask, float *out, int tiles) { attend<false>(mask, out, tiles); }
__global__ void right(const float *mask, float *out, int tiles) { attend<true>(mask, out, tiles); }
