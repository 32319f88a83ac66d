// https://github.com/pytorch/FBGEMM/pull/5857: groups past the end return before the barriers of the others (hangs on ROCm).
// <<<2, (32, 8)>>>(float[384], float[12], 12)
__global__ void faulty(const float *x, float *largest, int groups) {
  __shared__ float tile[8][32];
  const int group = blockIdx.x * blockDim.y + threadIdx.y;
  if (group >= groups) return;
  tile[threadIdx.y][threadIdx.x] = fabsf(x[group * 32 + threadIdx.x]);
  for (int n = 16; n > 0; n /= 2) {
    __syncthreads();  // fault: missed-barrier
    if (threadIdx.x < n) tile[threadIdx.y][threadIdx.x] = fmaxf(tile[threadIdx.y][threadIdx.x], tile[threadIdx.y][threadIdx.x + n]);
  }
  if (threadIdx.x == 0) largest[group] = tile[threadIdx.y][0];
}
__global__ void right(const float *x, float *largest, int groups) {
  __shared__ float tile[8][32];
  const int group = blockIdx.x * blockDim.y + threadIdx.y;
  const bool active = group < groups;
  tile[threadIdx.y][threadIdx.x] = active ? fabsf(x[group * 32 + threadIdx.x]) : 0.f;
  for (int n = 16; n > 0; n /= 2) {
    __syncthreads();
    if (threadIdx.x < n) tile[threadIdx.y][threadIdx.x] = fmaxf(tile[threadIdx.y][threadIdx.x], tile[threadIdx.y][threadIdx.x + n]);
  }
  if (active && threadIdx.x == 0) largest[group] = tile[threadIdx.y][0];
}
