// https://github.com/kokkos/kokkos/pull/6630: one thread adds to a value in shared memory that its warp then reads.
// <<<1, 32>>>(float[32], float[8])
template <bool Waits> __device__ void reduce(const float *x, float *o) {
  __shared__ float shared[8];
  int t = threadIdx.x;
  if (t < 8) shared[t] = 0;
  __syncwarp();
  if (t == 0) for (int i = 0; i < 8; i++) shared[i] += x[i] + x[i + 8] + x[i + 16] + x[i + 24];
  if (Waits) __syncwarp();
  if (t < 8) o[t] = shared[t];  // fault: warp-race
}
__global__ void faulty(const float *x, float *o) { reduce<false>(x, o); }
__global__ void right(const float *x, float *o) { reduce<true>(x, o); }
