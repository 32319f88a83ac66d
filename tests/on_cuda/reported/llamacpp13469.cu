// https://github.com/ggml-org/llama.cpp/pull/13469: wrong results on a long context.
// <<<1, 128>>>(float[128], float[128], 2)
template <bool Right> __device__ void combine(const float *x, float *y, int n) {
  __shared__ float s[128], m[4];
  int t = threadIdx.x, warp = t / 32;
  s[t] = x[t];
  if (Right || warp < n) __syncthreads();  // fault: divergent-barrier
  float most = s[(t + 32) % 128];
  if (t % 32 == 0) m[warp] = most;
  __syncthreads();
  y[t] = m[(warp + 1) % 4];
}
__global__ void faulty(const float *x, float *y, int n) { combine<false>(x, y, n); }
__global__ void right(const float *x, float *y, int n) { combine<true>(x, y, n); }
