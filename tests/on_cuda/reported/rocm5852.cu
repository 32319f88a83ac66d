// https://github.com/ROCm/legacy-rocm-build/issues/5852: branches meet on Volta and later.
// <<<1, 32>>>(long[32])
__global__ void faulty(long *p) {
  long m = 0;
  if (threadIdx.x & 1) {
    m = __activemask();
    m = __shfl_xor_sync(0xffffffffu, m, 1);  // fault: missing-lanes
  }
  p[threadIdx.x] = m;
}
__global__ void right(long *p) {
  long m;
  if (threadIdx.x & 1) {
    m = __activemask();
    m = __shfl_xor_sync(0xffffffffu, m, 1);
  } else {
    m = __activemask();
    m = __shfl_xor_sync(0xffffffffu, m, 1);
  }
  p[threadIdx.x] = m;
}
