// https://github.com/xlite-dev/LeetCUDA/blob/main/kernels/softmax/softmax.cu#L351: a warp reads what eight of its lanes have, of shared memory.
// <<<2, 256>>>(float[512], float[512], 512)
struct Part { float most, sum; };
__device__ Part joined(Part a, Part b) {
  Part large = a.most > b.most ? a : b, small = a.most > b.most ? b : a;
  large.sum += small.sum * __expf(small.most - large.most);
  return large;
}
template <int Lanes> __device__ Part over_lanes(Part p) {
  for (int k = Lanes / 2; k > 0; k /= 2)
    p = joined(p, Part{__shfl_xor_sync(0xffffffff, p.most, k), __shfl_xor_sync(0xffffffff, p.sum, k)});
  return p;
}
template <bool Right> __device__ void softmax(const float *x, float *y, int n) {
  __shared__ Part parts[8];
  int t = threadIdx.x, i = blockIdx.x * 256 + t;
  Part p = over_lanes<32>(Part{i < n ? x[i] : -3e38f, i < n ? 1.f : 0.f});
  if (t % 32 == 0) parts[t / 32] = p;
  __syncthreads();
  if (t < 32) {
    Part all = {-3e38f, 0.f};
    if (!Right || t < 8) all = parts[t];  // fault: shared-out-of-bounds
    all = over_lanes<8>(all);
    if (t == 0) parts[0] = all;
  }
  __syncthreads();
  if (i < n) y[i] = __expf(x[i] - parts[0].most) / parts[0].sum;
}
__global__ void faulty(const float *x, float *y, int n) { softmax<false>(x, y, n); }
__global__ void right(const float *x, float *y, int n) { softmax<true>(x, y, n); }
