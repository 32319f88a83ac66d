// https://github.com/arrayfire/arrayfire/issues/625: race in reduce_first_kernel (racecheck).
// <<<2, (32, 8)>>>(float[4096], float[16])
template <bool Waits> __device__ void reduce(const float *x, float *o) {
  __shared__ float all[256];
  float *s = all + threadIdx.y * 32, v = 0;
  const float *row = x + (blockIdx.x * 8 + threadIdx.y) * 256;
  for (int i = threadIdx.x; i < 256; i += 32) v += row[i];
  s[threadIdx.x] = v;
  if (Waits) __syncthreads();
  for (int n = 16; n; n /= 2) {
    float other = threadIdx.x < n ? s[threadIdx.x + n] : 0;  // fault: warp-race
    __syncthreads();
    if (threadIdx.x < n) s[threadIdx.x] += other;
    if (Waits) __syncthreads();
  }
  if (threadIdx.x == 0) o[blockIdx.x * 8 + threadIdx.y] = s[0];
}
__global__ void faulty(const float *x, float *o) { reduce<false>(x, o); }
__global__ void right(const float *x, float *o) { reduce<true>(x, o); }
