// https://github.com/csarofeen/pytorch/issues/1579: warps without an element leave their sum unset.
// <<<1, 128>>>(float[50], float[1]=0, 50)
__device__ float warp_sum(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
  return v;
}
__global__ void faulty(const float *x, float *out, int n) {
  __shared__ float sums[4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool reads = threadIdx.x < n;
  float v = warp_sum(reads ? x[threadIdx.x] : 0.0f);
  if (reads && lane == 0) sums[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < 4 ? sums[lane] : 0.0f;  // fault: shared-uninitialized-read
    v = warp_sum(v);
    if (lane == 0) *out = v;
  }
}
__global__ void right(const float *x, float *out, int n) {
  __shared__ float sums[4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool reads = threadIdx.x < n;
  float v = warp_sum(reads ? x[threadIdx.x] : 0.0f);
  if (lane == 0) sums[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = lane < 4 ? sums[lane] : 0.0f;
    v = warp_sum(v);
    if (lane == 0) *out = v;
  }
}
