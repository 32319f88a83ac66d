// https://github.com/thu-ml/SageAttention/pull/376: rows past the sequence stay as they were in shared memory, and 0 * NaN is NaN.
// <<<1, 128>>>(float[144], float[16]=0, 9)
__device__ void copy_row(float *to, const float *from, bool there, bool fill) {
  if (there) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
  else if (fill) *to = 0.f;
}
template <bool Right> __device__ void weighted(const float *v, float *out, int rows) {
  __shared__ float tile[16][16];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) copy_row(&tile[i / 16][i % 16], v + i, i / 16 < rows, Right);
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  if (threadIdx.x < 16) {
    float sum = 0;
    for (int row = 0; row < 16; row++) {
      const float weight = row < rows ? 1.f / rows : 0.f;
      sum += weight * tile[row][threadIdx.x];  // fault: shared-uninitialized-read
    }
    out[threadIdx.x] = sum;
  }
}
__global__ void faulty(const float *v, float *out, int rows) { weighted<false>(v, out, rows); }
__global__ void right(const float *v, float *out, int rows) { weighted<true>(v, out, rows); }
