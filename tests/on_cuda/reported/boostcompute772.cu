// https://github.com/boostorg/compute/pull/772: local_scan reads its input at the global index without a look.
// <<<4, 64>>>(int[200], int[200])
template <bool Looks> __device__ void scan(const int *in, int *out, int n) {
  __shared__ int s[64];
  int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x;
  s[t] = !Looks || i < n ? in[i] : 0;  // fault: out-of-bounds
  __syncthreads();
  for (int d = 1; d < 64; d *= 2) {
    int left = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += left;
    __syncthreads();
  }
  if (i < n) out[i] = s[t];
}
__global__ void faulty(const int *in, int *out) { scan<false>(in, out, 200); }
__global__ void right(const int *in, int *out) { scan<true>(in, out, 200); }
