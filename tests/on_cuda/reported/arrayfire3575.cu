// https://github.com/arrayfire/arrayfire/pull/3576: a shuffle whose mask leaves out lanes that call it: an exception since CUDA 12.2.
// <<<1, 64>>>(float[64], float[64]=0, 20)
template <bool Right> __device__ void neighbours(const float *x, float *y, int active) {
  int lane = threadIdx.x % 32;
  unsigned mask = Right ? 0xffffffff : __ballot_sync(0xffffffff, lane < active);
  float v = __shfl_down_sync(mask, x[threadIdx.x], 1);  // fault: missing-lanes
  if (lane < active - 1) y[threadIdx.x] = v;
}
__global__ void faulty(const float *x, float *y, int active) { neighbours<false>(x, y, active); }
__global__ void right(const float *x, float *y, int active) { neighbours<true>(x, y, active); }
