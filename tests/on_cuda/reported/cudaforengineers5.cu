// https://github.com/myurtoglu/cudaforengineers/issues/5: a difference of neighbours at both ends.
// <<<4, 64>>>(float[200], float[200], 200)
template <bool RIGHT> __device__ void differ(float *out, const float *in, int size) {
  const int i = threadIdx.x + blockDim.x * blockIdx.x;
  if (i >= size || (RIGHT && (i == 0 || i == size - 1))) return;
  out[i] = in[i - 1] + in[i + 1] - 2.f * in[i];  // fault: out-of-bounds
}
extern "C" __global__ void faulty(float *out, const float *in, int size) { differ<false>(out, in, size); }
extern "C" __global__ void right(float *out, const float *in, int size) { differ<true>(out, in, size); }
