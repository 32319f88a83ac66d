// https://github.com/flashinfer-ai/flashinfer/pull/636: vectors of four floats behind the sums of two warps.
// <<<2, 64>>>(float[512], float[512]=0)
template <bool Right> __device__ void scale(const float *x, float *y) {
  __shared__ __align__(16) float room[8 + 256];
  const int warps = blockDim.x / 32, t = threadIdx.x, base = blockIdx.x * 256;
  float4 *rows = reinterpret_cast<float4 *>(room + (Right ? (warps + 3) / 4 * 4 : warps));
  const float4 v = reinterpret_cast<const float4 *>(x + base)[t];
  float sum = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  for (int n = 16; n; n /= 2) sum += __shfl_xor_sync(0xffffffff, sum, n);
  if (t % 32 == 0) room[t / 32] = sum;
  rows[t] = v;  // fault: misaligned
  __syncthreads();
  const float by = rsqrtf(room[0] + room[1]);
  const float4 r = rows[t];
  reinterpret_cast<float4 *>(y + base)[t] = make_float4(r.x * by, r.y * by, r.z * by, r.w * by);
}
__global__ void faulty(const float *x, float *y) { scale<false>(x, y); }
__global__ void right(const float *x, float *y) { scale<true>(x, y); }
