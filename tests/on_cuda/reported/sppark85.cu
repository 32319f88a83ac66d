// https://github.com/supranational/sppark/issues/85: shared memory is used again before every warp has read the last value.
// <<<(2), (128)>>>(float[256], float[256]=empty)
__global__ void faulty(const float *x, float *y) {
  __shared__ float carry[8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float v = x[blockIdx.x * 128 + threadIdx.x];
  if (threadIdx.x < 8) carry[threadIdx.x] = v;
  __syncthreads();
  v += carry[3];
  if (lane == 31) carry[warp] = v;  // fault: shared-race
  __syncthreads();
  y[blockIdx.x * 128 + threadIdx.x] = v + (warp ? carry[warp - 1] : 0);
}
__global__ void right(const float *x, float *y) {
  __shared__ float carry[8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float v = x[blockIdx.x * 128 + threadIdx.x];
  if (threadIdx.x < 8) carry[threadIdx.x] = v;
  __syncthreads();
  v += carry[3];
  __syncthreads();
  if (lane == 31) carry[warp] = v;
  __syncthreads();
  y[blockIdx.x * 128 + threadIdx.x] = v + (warp ? carry[warp - 1] : 0);
}
