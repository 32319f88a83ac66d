// https://github.com/numba/numba/issues/7284: whole blocks of threads, and a kernel that asks for no length.
// <<<1, 128>>>(long[32]=0, 7, 32)
__global__ void faulty(long long *values, long long more, int n) {
  values[threadIdx.x] += more;  // fault: out-of-bounds
}
__global__ void right(long long *values, long long more, int n) {
  if (threadIdx.x >= n) return;
  values[threadIdx.x] += more;
}
