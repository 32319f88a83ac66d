// https://github.com/tile-ai/tilelang/pull/2360: a barrier for one arrival at which all lanes of a warp arrive.
// <<<2, 64>>>(float[128], float[128]=0)
__device__ unsigned place(unsigned long long *barrier) { return (unsigned)__cvta_generic_to_shared(barrier); }
__device__ void arrive(unsigned at) { asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(at) : "memory"); }
__device__ void wait(unsigned at, unsigned parity) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"  // fault: endless-wait
                 : "=r"(done) : "r"(at), "r"(parity) : "memory");
}
__device__ void pipe(const float *x, float *y, int arrivals) {
  __shared__ float s[32];
  __shared__ unsigned long long loaded, used;
  int t = threadIdx.x, lane = t % 32;
  if (t == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(place(&loaded)), "r"(arrivals) : "memory");
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(place(&used)), "r"(32) : "memory");
  }
  __syncthreads();
  for (int k = 0; k < 2; k++) {
    if (t < 32) {
      if (k) wait(place(&used), 0);
      for (int j = 0; j < 2; j++) {
        if (lane % 2 == j) {
          s[lane] = x[blockIdx.x * 64 + k * 32 + lane];
          arrive(place(&loaded));
        }
      }
    } else {
      wait(place(&loaded), k);
      y[blockIdx.x * 64 + k * 32 + lane] = s[31 - lane];
      arrive(place(&used));
    }
  }
}
__global__ void faulty(const float *x, float *y) { pipe(x, y, 16); }
__global__ void right(const float *x, float *y) { pipe(x, y, 32); }
