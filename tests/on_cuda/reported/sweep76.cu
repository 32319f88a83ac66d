// https://github.com/DeepWave-KAUST/sweep/pull/76: an index of a record in 32 bits wraps around.
// <<<1, 32>>>(float[4096])
template <typename Index> __device__ void keep(float *record, int receivers, int steps, int it) {
  int b = 1, n = threadIdx.x % 2;
  Index at = ((Index)b * receivers + n) * steps + it;
  long long first = (1ll * b * receivers) * steps + it;  // where this part of the record begins
  record[(long long)at - first + threadIdx.x] = threadIdx.x;  // fault: out-of-bounds
}
__global__ void faulty(float *record) { keep<int>(record, 106615, 47397, 0); }
__global__ void right(float *record) {
  if (threadIdx.x % 2 == 0) keep<long long>(record, 106615, 47397, 0);
}
