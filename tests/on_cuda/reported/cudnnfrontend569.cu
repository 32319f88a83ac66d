// https://github.com/NVIDIA/cudnn-frontend/pull/569: halves exchange by memory that is used anew behind a barrier of each half.
// <<<2, 128>>>(float[256], float[256]=0)
__device__ void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
template <bool All> __device__ void exchange(const float *x, float *y) {
  __shared__ float s[128];
  int t = threadIdx.x, i = blockIdx.x * 128 + t;
  s[t] = x[i];
  meet(1, 128);
  float other = s[t ^ 64];
  if (All) meet(1, 128);
  else meet(2 + t / 64, 64);
  s[t] = fmaxf(x[i], other);  // fault: shared-race
  meet(2 + t / 64, 64);
  y[i] = s[t ^ 32];
}
__global__ void faulty(const float *x, float *y) { exchange<false>(x, y); }
__global__ void right(const float *x, float *y) { exchange<true>(x, y); }
