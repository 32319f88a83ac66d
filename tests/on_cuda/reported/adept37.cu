// https://github.com/apt-sim/AdePT/pull/37: one element too many.
// <<<4, 32>>>(float[100], float[100], 100)
template <bool Right> __device__ void process(const float *energy, float *y, int used) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (Right ? i >= used : i > used) return;
  y[i] = 0.5f * energy[i];  // fault: out-of-bounds
}
__global__ void faulty(const float *energy, float *y, int used) { process<false>(energy, y, used); }
__global__ void right(const float *energy, float *y, int used) { process<true>(energy, y, used); }
