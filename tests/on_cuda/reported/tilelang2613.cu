// https://github.com/tile-ai/tilelang/issues/2613: two groups of warps read a tile that one may load anew before the other is done.
// <<<2, 128>>>(float[512], float[256]=0)
__device__ void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
__device__ float product(const float *tile, int group) {
  float sum = 0;
  for (int k = 0; k < 128; k++) sum += tile[k] * (group + 1);
  return sum;
}
__device__ void groups(const float *x, float *y, bool waits) {
  __shared__ float tile[128];
  int t = threadIdx.x, group = t / 64;
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    tile[t] = x[k * 128 + t];  // fault: shared-race
    __syncthreads();
    sum += product(tile, group);
    if (waits) __syncthreads();
    else meet(1 + group, 64);
  }
  y[blockIdx.x * 128 + t] = sum;
}
__global__ void faulty(const float *x, float *y) { groups(x, y, false); }
__global__ void right(const float *x, float *y) { groups(x, y, true); }
