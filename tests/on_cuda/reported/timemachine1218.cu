// https://github.com/proteneer/timemachine/pull/1218: threads that have no atoms left leave a loop with a barrier in it.
// <<<2, 64>>>(float[150], float[4]=0, 150)
template <bool Right> __device__ void energies(const float *x, float *sums, int n) {
  __shared__ float room[64];
  const int t = threadIdx.x;
  int atom = blockIdx.x * 64 + t;
  while (Right ? atom - t < n : atom < n) {
    room[t] = !Right || atom < n ? x[atom] * x[atom] : 0.f;
    __syncthreads();  // fault: missed-barrier
    if (t == 0) {
      float sum = 0;
      for (int i = 0; i < 64 && atom + i < n; i++) sum += room[i];
      sums[atom / 64] = sum;
    }
    __syncthreads();
    atom += gridDim.x * blockDim.x;
  }
}
__global__ void faulty(const float *x, float *sums, int n) { energies<false>(x, sums, n); }
__global__ void right(const float *x, float *sums, int n) { energies<true>(x, sums, n); }
