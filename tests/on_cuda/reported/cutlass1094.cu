// https://github.com/NVIDIA/cutlass/issues/1094: the number of the last lane, given as a mask of lanes.
// <<<1, 64>>>(int[64]=0)
__global__ void faulty(int *out) {
  out[threadIdx.x] = __shfl_sync(0x1f, (int)threadIdx.x / 32, 0);  // fault: missing-lanes
}
__global__ void right(int *out) { out[threadIdx.x] = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0); }
