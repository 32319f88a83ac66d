// https://github.com/pytorch/pytorch/pull/20182: the first warp writes its sum over values that its other lanes still read.
// <<<4, 256>>>(float[1024], float[4])
template <bool Right> __device__ float reduced(float v, float *room) {
  const int t = threadIdx.x, warps = blockDim.x / 32;
  __syncthreads();
  room[t] = v;
  __syncthreads();
  const unsigned mask = (1u << warps) - 1;
  if (t < warps) {
    float sum = 0;
    for (int i = 0; i < 32; i++) sum += room[t * 32 + i];
    if (Right) __syncwarp(mask);
    room[t] = sum;  // fault: warp-race
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; i++) sum += room[i];
  return sum;
}
template <bool Right> __device__ void means(const float *x, float *y) {
  __shared__ float room[256];
  const float sum = reduced<Right>(x[blockIdx.x * 256 + threadIdx.x], room);
  if (threadIdx.x == 0) y[blockIdx.x] = sum / 256;
}
__global__ void faulty(const float *x, float *y) { means<false>(x, y); }
__global__ void right(const float *x, float *y) { means<true>(x, y); }
